"""Texts that are passed on hold no path of this machine."""

from __future__ import annotations

import re
import sysconfig
import tempfile
from pathlib import Path

from batchproof.places import ROOT

# Ends where a path ends in a report: at white space, a quote, a colon or a comma.
_TEMPORARY = re.compile(rf"{re.escape(tempfile.gettempdir())}/(?:[^\s'\"`:,]+/)?")
_INSTALLED = re.compile(r"/(?:[^\s'\"`:,]+/)?site-packages/")


def without_machine_paths(text: str) -> str:
    """Returns the text with files named relative to the checkout, and those of installed packages by
    their own names."""
    text = _INSTALLED.sub("", _TEMPORARY.sub("", text.replace(f"{ROOT}/", "")))
    for folder in (sysconfig.get_path("stdlib"), sysconfig.get_path("data"), str(Path.home())):
        text = text.replace(f"{folder}/", "")
    return text
