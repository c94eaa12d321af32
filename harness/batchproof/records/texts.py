"""Tables in Markdown, counts, and names for folders."""

import hashlib
import re
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from batchproof.places import CHECKOUT, ROOT


def header(*cells: str) -> Iterator[str]:
    """Yields the two lines that begin a table with these columns."""
    yield line(*cells)
    yield line(*("---" for _ in cells))


def line(*cells: str) -> str:
    """Returns one row of a table; bars in the cells are escaped."""
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun: `1 row`, `1,200 rows`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


MOST_NAMED = 3


def some_of(names: Sequence[str]) -> str:
    """Returns the first of these names, and how many more there are."""
    shown = ", ".join(f"`{each}`" for each in names[:MOST_NAMED])
    more = len(names) - MOST_NAMED
    return f"{shown} and {more} more" if more > 0 else shown


MOST_CHARACTERS = 100


def slug(name: str) -> str:
    """Returns a name for a folder: `openvino-genai 2026.4.1` becomes `openvino-genai-2026.4.1`. A name
    that is cut off, or has no usable character left, gets a few digits of its hash."""
    found = re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.")
    if 0 < len(found) <= MOST_CHARACTERS and found != "README":
        return found
    digits = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{found[:MOST_CHARACTERS]}-{digits}".strip("-")


# Ends where a path ends in a report: at white space, a quote, a colon or a comma.
_TEMPORARY = re.compile(rf"{re.escape(tempfile.gettempdir())}/(?:[^\s'\"`:,]+/)?")
_INSTALLED = re.compile(r"[^\s'\"`:,]*/site-packages/")


def without_machine_paths(text: str) -> str:
    """Returns the text with files named from the checkout, and installed packages by their names."""
    for root in filter(None, (ROOT, CHECKOUT)):
        text = text.replace(f"{root}/", "")
    text = _INSTALLED.sub("", _TEMPORARY.sub("", text))
    for folder in (sysconfig.get_path("stdlib"), sysconfig.get_path("data"), str(Path.home())):
        text = text.replace(f"{folder}/", "")
    return text
