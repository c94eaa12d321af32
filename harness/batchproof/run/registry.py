"""Resolves the text behind `--engine` to a factory.

This is the only module that imports from `implementations/`. It also finds the engines of other
packages: each names its factories in the entry-point group `batchproof.engines`.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from batchproof.api import Engine, EngineFactory
from batchproof.errors import UsageError
from batchproof.validation.values import near

PACKAGE = "batchproof_engines"
REFERENCE = "reference"  # its answers are the specification
OWN = {
    REFERENCE: "batchproof_engines.reference:reference",
    "static": "batchproof_engines.static:static",
    "ragged": "batchproof_engines.ragged.engine:ragged",
    "paged": "batchproof_paged:paged",
}
TEACHING = {  # planted faults and oddities are parts of it: it runs only when it is named
    "ragged-paged": "batchproof_engines.ragged_paged.build:ragged_paged",
}
PEERS = {  # adapters to released engines: they run only when they are named
    "transformers-cb": "batchproof_engines.adapters.transformers_cb:transformers_cb",
    "generate-static": "batchproof_engines.adapters.generate_static:generate_static",
    "openai": "batchproof_engines.adapters.openai:openai",
    "openvino": "batchproof_engines.adapters.released:openvino",
    "ctranslate2": "batchproof_engines.adapters.released:ctranslate2",
    "onnxruntime": "batchproof_engines.adapters.released:onnxruntime",
    "transformers-serve": "batchproof_engines.adapters.released:transformers_serve",
}
IN_PROCESS = {*OWN, *TEACHING, "transformers-cb", "generate-static"}
BUILT_IN = OWN | TEACHING | PEERS
BY_DEFAULT = list(OWN)
ENTRY_POINTS = "batchproof.engines"  # group; an entry is `name = "pkg.mod:factory"`
FAULT_PREFIX = "fault:"
ODD_PREFIX = "odd:"
COARSE_PREFIX = "coarse:"  # honest, but rounds more than the model as it is served
SET_PREFIX = "set:"  # honest, but set otherwise than asked for
COLLECTIONS = {  # by prefix: what each of them is, and the module and the table that hold them
    FAULT_PREFIX: ("planted fault", "faulty", "FAULTS"),
    ODD_PREFIX: ("honest oddity", "odd", "ODDITIES"),
    COARSE_PREFIX: ("coarse engine", "coarse", "COARSE"),
    SET_PREFIX: ("engine set otherwise", "coarse", "SET"),
}
COMMAND_PREFIX = "cmd:"  # all behind it is a command line: it has no options
FACTORY = re.compile(r"[^-:\s][^:\s]*:[^:\s]+")  # and fault:NAME, but no id of a test
FORMS = (
    "a built-in or installed name, fault:NAME, odd:NAME, coarse:NAME, set:NAME, pkg.mod:factory or "
    "path.py:factory, "
    "then ?key=value&key=value; or cmd:COMMAND LINE"
)


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """An engine as it was requested: the text that names it in reports, and its factory."""

    name: str
    factory: EngineFactory = field(compare=False)


def resolve_engine(text: str) -> EngineSpec:
    """Returns the engine of this text. Raises `UsageError` that names what is wrong and the choices."""
    if text.startswith(COMMAND_PREFIX):
        piped = _ours("adapters.piped")
        return EngineSpec(text, piped.command_line(text.removeprefix(COMMAND_PREFIX)))
    target, _, query = text.partition("?")
    options = parse_options(text, query)
    prefix = next(filter(target.startswith, COLLECTIONS), None)
    if prefix is not None:
        factory = _planted(prefix, target)
    else:
        factory = _load(text, target if ":" in target else _target_of(text, target))
    _check_options(text, factory, options)
    return EngineSpec(text, partial(factory, **options) if options else factory)


def looks_like_engine(text: str) -> bool:
    """Returns whether a word has the form of an engine's name. None is resolved."""
    name = text.partition("?")[0]
    is_named = name in BUILT_IN or bool(installed_engines(name))
    return is_named or text.startswith(COMMAND_PREFIX) or bool(FACTORY.fullmatch(name))


def has_own_process(text: str) -> bool:
    """Returns whether the engine of this text works in another process than that of the tests."""
    name = text.partition("?")[0]
    return text.startswith(COMMAND_PREFIX) or name in BUILT_IN.keys() - IN_PROCESS


def isolated(spec: EngineSpec, device: str) -> EngineSpec:
    """Returns the engine in a process of its own, which gets the model from disk."""
    if has_own_process(spec.name):
        return spec
    host = shlex.join([sys.executable, "-m", "batchproof", "host", spec.name, f"--device={device}"])
    return EngineSpec(spec.name, resolve_engine(f"{COMMAND_PREFIX}{host}").factory)


def engine_host() -> Any:
    """Returns the module that answers a pipe with an engine of this process."""
    return _ours("adapters.piped.host")


def source_of(spec: EngineSpec) -> Path:
    """Returns the Python file of an engine's factory, or the folder if that is a package. Raises
    `UsageError` if the factory has no Python source."""
    factory = spec.factory.func if isinstance(spec.factory, partial) else spec.factory
    file = inspect.getsourcefile(sys.modules.get(factory.__module__, type(factory)))
    if file is None:
        raise _wrong(spec.name, "its factory has no Python source to change")
    path = Path(file)
    return path.parent if path.name == "__init__.py" else path


def installed_engines(name: str | None = None) -> list[EntryPoint]:
    """Returns the engines that other installed packages name, or those of one name."""
    found = entry_points(group=ENTRY_POINTS)
    return sorted(found if name is None else found.select(name=name), key=lambda each: each.name)


def _target_of(text: str, name: str) -> str:
    """Returns module and factory of a plain name. Raises `UsageError` if it is unknown or ambiguous."""
    targets = [BUILT_IN[name]] if name in BUILT_IN else []
    installed = installed_engines(name)
    targets += [entry.value for entry in installed]
    if not targets and name.endswith(".py"):
        raise UsageError(
            f"--engine {text!r} names no factory: add it after a colon, such as {name}:Engine"
        )
    if not targets:
        others = ", ".join(dict.fromkeys(entry.name for entry in installed_engines()))
        raise UsageError(
            f"--engine {text!r} is no engine: built in are {', '.join(BUILT_IN)}; "
            f"installed packages name {others or 'none'}; give {FORMS}"
        )
    if len(targets) > 1:
        owners = ["Batchproof itself"] if name in BUILT_IN else []
        owners += [entry.dist.name if entry.dist else entry.value for entry in installed]
        raise UsageError(
            f"--engine {text!r} is ambiguous: {' and '.join(owners)} give an engine that name; "
            f"name the factory instead, one of {', '.join(targets)}"
        )
    return targets[0]


def collection(prefix: str) -> Mapping[str, Any]:
    """Returns the engines of a prefix by name: what the package says of each."""
    _, module, table = COLLECTIONS[prefix]
    return dict(getattr(_ours(module), table))


faults = partial(collection, FAULT_PREFIX)
oddities = partial(collection, ODD_PREFIX)
coarse_engines = partial(collection, COARSE_PREFIX)
set_engines = partial(collection, SET_PREFIX)


def _ours(module: str) -> Any:
    return importlib.import_module(f"{PACKAGE}.{module}")


def server_engine(url: str) -> str:
    """Returns the text of the engine for a server of the OpenAI interface at this URL, which is asked
    for the name of its model. Raises `UsageError` if it does not answer."""
    return str(_ours("adapters.openai.discovery").engine_at(url))


def reference_factory() -> EngineFactory:
    """Returns the factory of the engine whose answers are the specification."""
    return resolve_engine(REFERENCE).factory


def released_engines() -> Any:
    """Returns the module that describes the released engines of others, installed in environments of
    their own."""
    return _ours("adapters.released.libraries")


def words_tokenizer(vocab_size: int) -> Any:
    """Returns a tokenizer with one word for each token, for a model on disk."""
    return _ours("adapters.word_tokenizer").words_tokenizer(vocab_size)


def _planted(prefix: str, target: str) -> Callable[..., Engine]:
    name, known = target.removeprefix(prefix), collection(prefix)
    if name not in known:
        hint = near(name, known, f"the package {PACKAGE}")
        raise UsageError(f"--engine {target!r} is no {COLLECTIONS[prefix][0]}; {hint}")
    factory: Callable[..., Engine] = known[name].factory
    return factory


def _load(text: str, target: str) -> Callable[..., Engine]:
    module_name, _, attribute = target.rpartition(":")
    is_file = module_name.endswith(".py")
    if is_file and not Path(module_name).resolve().is_file():
        where = "" if Path(module_name).is_absolute() else f" in {str(Path.cwd())!r}"
        raise _wrong(text, f"there is no file {module_name!r}{where}")
    try:
        module = _module_of(module_name) if is_file else importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        what = f"{'running' if is_file else 'importing'} {module_name!r}"
        raise _wrong(text, f"{what} raised {type(error).__name__}: {error}") from error
    if not hasattr(module, attribute):
        callables = [
            name
            for name, value in vars(module).items()
            if callable(value)
            and not name.startswith("_")
            and getattr(value, "__module__", None) == module.__name__
        ]
        listed = ", ".join(callables) or "none"
        raise _wrong(text, f"{module_name} has no attribute {attribute!r}; its callables are {listed}")
    factory = getattr(module, attribute)
    if not callable(factory):
        kind = type(factory).__name__
        rule = "a factory(model, config) that returns an engine"
        raise _wrong(text, f"{attribute!r} is a {kind}, but must be {rule}")
    return factory


def _module_of(file_name: str) -> ModuleType:
    """Returns the module that a Python file makes."""
    path = Path(file_name).resolve()
    name = f"batchproof_engine_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, f"{path} ends in .py"
    assert spec.loader is not None, f"{path} ends in .py"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their own module up
    sys.path.append(str(path.parent))  # so that it can import its neighbours
    spec.loader.exec_module(module)
    return module


def _wrong(text: str, problem: str) -> UsageError:
    return UsageError(f"--engine {text!r}: {problem}")


def parse_options(text: str, query: str) -> dict[str, Any]:
    """Returns `a=1&b=true` as keyword arguments; values are YAML scalars. Raises `UsageError`."""
    options: dict[str, Any] = {}
    for part in filter(None, query.split("&")):
        key, equals, value = part.partition("=")
        if not (key.isidentifier() and equals):
            raise _wrong(text, f"option {part!r} must read key=value")
        if key in options:
            raise _wrong(text, f"option {key!r} is given twice")
        try:
            options[key] = _scalar(value)
        except yaml.YAMLError as error:
            raise _wrong(text, f"the value of {key!r}, {value!r}, is no YAML scalar") from error
    return options


def _scalar(value: str) -> Any:
    """Returns the YAML scalar; 1e6, which YAML 1.1 reads as a string, is a number."""
    read = yaml.safe_load(value)
    return float(value) if re.fullmatch(r"[+-]?\d+e[+-]?\d+", value, re.IGNORECASE) else read


def _check_options(text: str, factory: Callable[..., Engine], options: Mapping[str, Any]) -> None:
    """Raises `UsageError` unless all options are parameters of the factory after model and config."""
    parameters = list(inspect.signature(factory).parameters.values())
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    positional = [p for p in parameters if p.kind is not p.KEYWORD_ONLY]
    names = [p.name for p in parameters if p not in positional[:2]]
    for key in options:
        if key not in names:
            known = ", ".join(names) or "none"
            raise _wrong(text, f"unknown option {key!r}; its factory takes {known}")
    if len(positional) < 2 and not any(p.kind is p.VAR_POSITIONAL for p in positional):
        raise _wrong(text, "a factory takes (model, config), this one cannot")
