"""The protocol of piped engines is defined once: page and example agree with `protocol.py`."""

import json
import re
from dataclasses import fields

from batchproof.api import CHOOSING, SamplingParams, TokenLogprobs
from batchproof.places import ROOT
from batchproof_engines.adapters.piped import protocol

PAGE = (ROOT / "docs" / "piped_engines.md").read_text()
MESSAGES: dict[str, type] = {
    "request": protocol.Request,
    "completion": protocol.Completion,
    "event": protocol.Event,
    "sampling": protocol.Sampling,
    "grammar": protocol.Grammar,
    "logprobs": protocol.Logprobs,
    "row": protocol.Row,
    "step": protocol.Step,
    "limits": protocol.Limits,
}


def test_the_protocol_has_all_that_a_request_may_ask_for() -> None:
    assert set(protocol.CHOOSING) == CHOOSING
    assert tuple(protocol.Sampling.__annotations__) == tuple(
        each.name for each in fields(SamplingParams)
    )
    assert tuple(protocol.Logprobs.__annotations__) == TokenLogprobs._fields


def test_the_page_has_every_operation_field_and_the_version() -> None:
    rows = dict(re.findall(r'^\| `\{"op": "(\w+)".*?` \| (.*) \|$', PAGE, re.MULTILINE))
    assert set(rows) == set(protocol.ANSWERS)
    for operation, answer in protocol.ANSWERS.items():
        assert set(re.findall(r'"(\w+)":', rows[operation])) == set(answer.__annotations__), operation
    for name, message in MESSAGES.items():
        shown = re.search(rf"^{name} +(\{{.*\}})$", PAGE, re.MULTILINE)
        assert shown is not None, f"the page shows no {name}"
        assert set(json.loads(shown[1].replace("[row, ...]", "[]"))) == set(message.__annotations__), (
            name
        )
    assert f'"protocol": {protocol.VERSION}}}' in PAGE
