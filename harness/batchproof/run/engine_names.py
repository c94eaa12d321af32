"""The names of engines: those built in, and the forms of their texts.

No engine is imported.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

from batchproof.api import Engine
from batchproof.errors import UsageError
from batchproof.models.embedded import EMBEDDED, WITH_STATES

PACKAGE = "batchproof_engines"
REFERENCE = "reference"  # its answers are the specification
OWN = {
    REFERENCE: "batchproof_engines.reference:reference",
    "static": "batchproof_engines.static:static",
    "ragged": "batchproof_engines.ragged.engine:ragged",
    "paged": "batchproof_paged:paged",
}
RELEASED = "batchproof_engines.adapters.released"  # a folder for each engine


def _released_names() -> list[str]:
    """Returns the folders that describe one, without an import of the package, which brings torch."""
    folder = files(PACKAGE).joinpath("adapters", "released")
    return sorted(each.name for each in folder.iterdir() if each.joinpath("engine.toml").is_file())


PEERS_HERE = {  # in the process of the tests
    "transformers-cb": "batchproof_engines.adapters.transformers_cb:transformers_cb"
}
PEERS_ELSEWHERE = {  # in a process of their own
    "openai": "batchproof_engines.adapters.openai:openai",
    **{name: f"{RELEASED}:{name}" for name in _released_names()},
}
PEERS = PEERS_HERE | PEERS_ELSEWHERE  # adapters to released engines: they run only when they are named
TEACHING = {  # planted faults and oddities are parts of it: it runs only when it is named
    "ragged-paged": "batchproof_engines.ragged_paged.states:ragged_paged"
}
BUILT_IN = OWN | TEACHING | PEERS
BY_DEFAULT = list(OWN)
# The models that an engine serves, on every device: to refuse one of these is a failure. Planted faults
# and oddities declare nothing, nor does an engine with options, which may refuse more.
SERVED = {
    **dict.fromkeys((*OWN, *TEACHING), frozenset(EMBEDDED)),
    **dict.fromkeys(("ragged", "transformers-cb"), frozenset(EMBEDDED) - WITH_STATES),
}
NOT_IN = {"float64": {"mixtral-hash"}}  # torch multiplies no experts in it
FAULT_PREFIX = "fault:"
ODD_PREFIX = "odd:"
COARSE_PREFIX = "coarse:"  # honest, but rounds more than the model as it is served
SET_PREFIX = "set:"  # honest, but set otherwise than asked for
COMMAND_PREFIX = "cmd:"  # all behind it is a command line: it has no options
FORMS = (
    "a built-in name, fault:NAME, odd:NAME, coarse:NAME, set:NAME, pkg.mod:factory or path.py:factory, "
    "then ?key=value&key=value; or cmd:COMMAND LINE"
)


def served_by(engine: str, dtype: str) -> frozenset[str]:
    """Returns the models that the engine serves in this dtype; none if `SERVED` does not list it."""
    return SERVED.get(engine, frozenset()) - NOT_IN.get(dtype, set())


def engine_error(text: str, problem: str) -> UsageError:
    return UsageError(f"--engine {text!r}: {problem}")


def has_own_process(text: str) -> bool:
    """Returns whether the engine of this text works in another process than that of the tests."""
    return text.startswith(COMMAND_PREFIX) or text.partition("?")[0] in PEERS_ELSEWHERE


def target_of(text: str, name: str) -> str:
    """Returns module and factory of a plain name. Raises `UsageError` if it is unknown."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    if name.endswith(".py"):
        raise UsageError(
            f"--engine {text!r} names no factory: add it after a colon, such as {name}:Engine"
        )
    raise UsageError(
        f"--engine {text!r} is no engine: built in are {', '.join(BUILT_IN)}; give {FORMS}"
    )


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
