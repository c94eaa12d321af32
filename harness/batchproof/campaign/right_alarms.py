"""What people say of alarms that were right: an engine thought to be honest had a bug of its own.

`honest_alarms.yaml`, beside the record, maps an alarm to the reason. Such an alarm stays on the page
and counts as no false one; the engine is mended.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import yaml

from batchproof.errors import UsageError
from batchproof.records.honest import FalseAlarm, HonestRecord, RightAlarm

FILE = "honest_alarms.yaml"


def settled(record: HonestRecord, folder: Path) -> HonestRecord:
    """Returns the record with its alarms sorted by what the folder's file says of them. Raises
    `UsageError` naming what is wrong in the file."""
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
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(f"'{path}' cannot be read: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
        raise UsageError(f"'{path}' must map the headings of alarms to reasons")
    return {str(name): why.strip() for name, why in found.items()}
