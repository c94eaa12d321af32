"""What people say of alarms that were right: an engine thought to be honest had a bug of its own.

`honest_alarms.yaml`, beside the record, maps an alarm to the reason. Such an alarm stays on the page
and counts as no false one; the engine is mended.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from batchproof.records.honest import FalseAlarm, HonestRecord, RightAlarm
from batchproof.validation.yaml_nodes import read_yaml

FILE = "honest_alarms.yaml"
RULE = "the headings of alarms to reasons"


def settled(record: HonestRecord, folder: Path) -> HonestRecord:
    """Returns the record with its alarms sorted by what the folder's file says of them. Raises
    `CaseError` naming what is wrong in the file."""
    reasons = _reasons(folder / FILE)
    named = [(each, reasons.get(name_of(each))) for each in record.alarms]
    right = tuple(RightAlarm(each, why) for each, why in named if why is not None)
    false = tuple(each for each, why in named if why is None)
    return replace(record, alarms=false, right=(*record.right, *right))


def name_of(alarm: FalseAlarm) -> str:
    """Returns the alarm's heading on the page, its key in the file."""
    return f"{alarm.engine} on {alarm.model}, {alarm.dtype}, seed {alarm.seed}"


def _reasons(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    root, rule = read_yaml(path, "the file", RULE), f"a mapping of {RULE}"
    return {name: why.text().strip() for name, why in root.pairs(rule).items()}
