"""The two files that a campaign leaves: a record as JSON, and its page in Markdown."""

import sys
from collections.abc import Callable
from pathlib import Path

from batchproof.records.file_kinds import FileKind, Record, replace_text


def write_result(
    kind: FileKind[Record],
    record: Record,
    page: Callable[[Record], str],
    output: Path,
    name: str,
    is_whole: bool,
) -> None:
    """Writes `NAME.json` and `NAME.md` into the folder `output`, or `NAME-partial.*` if the record is
    not whole. Raises `UsageError` if a file cannot be written."""
    path = output / f"{name if is_whole else f'{name}-partial'}.json"
    kind.write(record, path)
    replace_text(path.with_suffix(".md"), page(record))
    print(f"written: {path} and {path.with_suffix('.md').name}", file=sys.stderr)
