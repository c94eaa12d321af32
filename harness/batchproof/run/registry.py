"""Resolves the text behind `--engine` to a factory.

This is the only module that imports from `implementations/`.
"""

from __future__ import annotations

import importlib
import inspect
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from batchproof.api import Engine, EngineFactory
from batchproof.errors import UsageError
from batchproof.run.engine_files import load_factory
from batchproof.run.engine_names import (
    COARSE_PREFIX,
    COMMAND_PREFIX,
    FAULT_PREFIX,
    ODD_PREFIX,
    PACKAGE,
    REFERENCE,
    SET_PREFIX,
    check_options,
    engine_error,
    has_own_process,
    parse_options,
    target_of,
)
from batchproof.validation.values import near

COLLECTIONS = {  # by prefix: what each of them is, and the module and the table that hold them
    FAULT_PREFIX: ("planted fault", "faulty", "FAULTS"),
    ODD_PREFIX: ("honest oddity", "odd", "ODDITIES"),
    COARSE_PREFIX: ("coarse engine", "coarse", "COARSE"),
    SET_PREFIX: ("engine set otherwise", "coarse", "SET"),
}


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
        factory = load_factory(text, target if ":" in target else target_of(text, target))
    check_options(text, factory, options)
    return EngineSpec(text, partial(factory, **options) if options else factory)


def isolated(spec: EngineSpec, device: str) -> EngineSpec:
    """Returns the engine in a process of its own, which gets the model from disk."""
    if has_own_process(spec.name):
        return spec
    host = shlex.join([sys.executable, "-m", "batchproof", "host", spec.name, f"--device={device}"])
    return EngineSpec(spec.name, resolve_engine(f"{COMMAND_PREFIX}{host}").factory)


def engine_host() -> Any:
    return _ours("adapters.piped.host")


def source_of(spec: EngineSpec) -> Path:
    """Returns the Python file of an engine's factory, or the folder if that is a package. Raises
    `UsageError` if the factory has no Python source."""
    factory = spec.factory.func if isinstance(spec.factory, partial) else spec.factory
    file = inspect.getsourcefile(sys.modules.get(factory.__module__, type(factory)))
    if file is None:
        raise engine_error(spec.name, "its factory has no Python source to change")
    path = Path(file)
    return path.parent if path.name == "__init__.py" else path


def collection(prefix: str) -> Mapping[str, Any]:
    """Returns the engines of a prefix by name: what the package says of each."""
    _, module, table = COLLECTIONS[prefix]
    return dict(getattr(_ours(module), table))


faults = partial(collection, FAULT_PREFIX)
oddities = partial(collection, ODD_PREFIX)


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
