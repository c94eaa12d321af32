"""Names of folders and pages, made of titles."""

from __future__ import annotations

import hashlib
import re

MOST_CHARACTERS = 100


def slug(name: str) -> str:
    """Returns a name for a folder: `openvino-genai 2026.4.1` becomes `openvino-genai-2026.4.1`.

    A name that is cut off, or has no usable character left, gets a few digits of its hash.
    """
    found = re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.")
    if 0 < len(found) <= MOST_CHARACTERS and found != "README":
        return found
    digits = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{found[:MOST_CHARACTERS]}-{digits}".strip("-")
