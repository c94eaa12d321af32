"""Options behind the name of an engine: `paged?block_size=4`."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

from batchproof.api import Engine
from batchproof.run.engine_names import engine_error

PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}


def parse_options(text: str, query: str) -> dict[str, Any]:
    """Returns `a=1&b=true` as keyword arguments: a value that is a JSON scalar is that, any other is a
    text. Raises `UsageError`."""
    options: dict[str, Any] = {}
    for part in filter(None, query.split("&")):
        key, equals, value = part.partition("=")
        if not (key.isidentifier() and equals):
            raise engine_error(text, f"option {part!r} must read key=value")
        if key in options:
            raise engine_error(text, f"option {key!r} is given twice")
        if value in PYTHON_WORDS:
            raise engine_error(text, f"option {key!r} is {value!r}; write {PYTHON_WORDS[value]!r}")
        options[key] = _scalar(value)
    return options


def _scalar(value: str) -> Any:
    try:
        read = json.loads(value)
    except ValueError:
        return value
    return value if isinstance(read, list | dict) else read


def check_options(text: str, factory: Callable[..., Engine], options: Mapping[str, Any]) -> None:
    """Raises `UsageError` unless all options are parameters of the factory after model and config."""
    parameters = list(inspect.signature(factory).parameters.values())
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    positional = [p for p in parameters if p.kind is not p.KEYWORD_ONLY]
    names = [p.name for p in parameters if p not in positional[:2]]
    for key in options:
        if key not in names:
            known = ", ".join(names) or "none"
            raise engine_error(text, f"unknown option {key!r}; its factory takes {known}")
    if len(positional) < 2 and not any(p.kind is p.VAR_POSITIONAL for p in positional):
        raise engine_error(text, "a factory takes (model, config), this one cannot")
