"""Finds where in the repository under test a failure shows: the line that raised, or the engine's
definition.

A place is a file named from the repository's root, a line, and the function or class that it is in.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any

from batchproof.api import EngineFactory
from batchproof.places import repository
from batchproof.run.failures import OURS, is_library

Frame = tuple[str, int, str]  # file, line, function: JSON values, for a finding's facts


def raised_at(error: BaseException) -> Frame | None:
    """Returns the innermost frame of the repository's own that the exception passed, or None."""
    walked = traceback.walk_tb(error.__traceback__)
    return innermost((frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in walked)


def defined_at(factory: EngineFactory) -> Frame | None:
    """Returns where the factory of an engine is defined, or None outside the repository."""
    bare = inspect.unwrap(factory.func if isinstance(factory, partial) else factory)
    has_source = inspect.isroutine(bare) or inspect.isclass(bare)
    definition: Any = bare if has_source else type(bare)
    frame = _definition(definition)
    return None if frame is None else innermost([frame])


def innermost(frames: Iterable[Frame]) -> Frame | None:
    """Returns the last of the frames, outermost first, whose file is the repository's own."""
    root = repository()
    for file, line, name in reversed(list(frames)):
        path = Path(file)
        is_own = path.is_relative_to(root) and not is_library(file)  # some lie below the root
        if is_own and not file.startswith(OURS):
            return path.relative_to(root).as_posix(), line, name
    return None


@cache
def _definition(definition: Any) -> Frame | None:
    try:
        file, (_, line) = inspect.getsourcefile(definition), inspect.getsourcelines(definition)
    except (OSError, TypeError):  # it has no Python source
        return None
    return None if file is None else (str(Path(file).resolve()), line, definition.__qualname__)
