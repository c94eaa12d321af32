"""The protocol of piped engines: its page and the suite know what `protocol.py` names."""

import json
import re

from batchproof.api import Grammar, Request, RowRecord, SamplingLimits, SamplingParams, StepRecord
from batchproof.places import ROOT
from batchproof_engines.adapters.piped import messages, protocol

PAGE = (ROOT / "docs" / "piped_engines.md").read_text()
MESSAGES: dict[str, type] = {
    "request": Request,
    "completion": messages.Completion,
    "event": messages.Event,
    "sampling": SamplingParams,
    "grammar": Grammar,
    "logprobs": messages.Logprobs,
    "row": RowRecord,
    "step": StepRecord,
    "limits": SamplingLimits,
}


def test_the_page_has_every_operation_field_and_the_version() -> None:
    rows = dict(re.findall(r'^\| `\{"op": "(\w+)".*?` \| (.*) \|$', PAGE, re.MULTILINE))
    assert set(rows) == set(protocol.ANSWERS)
    for operation, names in protocol.ANSWERS.items():
        assert set(re.findall(r'"(\w+)":', rows[operation])) == {*names}, operation
        kind = messages.ANSWERS.get(operation, messages.Nothing)
        assert tuple(kind.__annotations__) == names
    for name, message in MESSAGES.items():
        shown = re.search(rf"^{name} +(\{{.*\}})$", PAGE, re.MULTILINE)
        assert shown is not None, f"the page shows no {name}"
        assert set(json.loads(shown[1].replace("[row, ...]", "[]"))) == set(message.__annotations__), (
            name
        )
    assert f'"protocol": {protocol.VERSION}}}' in PAGE
