"""Resolves the text behind `--engine` to a factory.

This is the only module that imports from `implementations/`. A Python file may import its neighbours,
but a process holds one module of a name: where the folders of two engine files both hold a helper of
one name, the second engine would run the helper of the first, so that import is refused.
"""

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import EnumMeta
from functools import partial
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from batchproof.api import Engine, EngineFactory
from batchproof.errors import UsageError
from batchproof.run import engine_names as names
from batchproof.run.engine_names import PACKAGE, engine_error
from batchproof.run.failures import place_words
from batchproof.validation.values import near

COLLECTIONS = {  # by prefix: what each of them is, and the module and the table that hold them
    names.FAULT_PREFIX: ("planted fault", "faulty", "FAULTS"),
    names.ODD_PREFIX: ("honest oddity", "odd", "ODDITIES"),
    names.COARSE_PREFIX: ("coarse engine", "coarse", "COARSE"),
    names.SET_PREFIX: ("engine set otherwise", "coarse", "SET"),
}


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """An engine as it was requested: the text that names it in reports, its factory, and the axes of a
    matrix that the factory declares (`batchproof.judgement.axes`)."""

    name: str
    factory: EngineFactory = field(compare=False)
    axes: Mapping[str, Any] = field(default_factory=dict, compare=False)


def resolve_engine(text: str) -> EngineSpec:
    """Returns the engine of this text. Raises `UsageError` that names what is wrong and the choices."""
    if text.startswith(names.COMMAND_PREFIX):
        piped = engines_module("adapters.piped")
        return EngineSpec(text, piped.command_line(text.removeprefix(names.COMMAND_PREFIX)))
    target, _, query = text.partition("?")
    options = names.parse_options(text, query)
    prefix = next(filter(target.startswith, COLLECTIONS), None)
    if prefix is not None:
        name, known = target.removeprefix(prefix), collection(prefix)
        if name not in known:
            hint = near(name, known, f"the module {PACKAGE}.{COLLECTIONS[prefix][1]}")
            raise UsageError(f"--engine {target!r} is no {COLLECTIONS[prefix][0]}; {hint}")
        factory = known[name].factory
    else:
        factory = load_factory(text, target if ":" in target else names.target_of(text, target))
    names.check_options(text, factory, options)
    axes = getattr(factory, "axes", {})
    return EngineSpec(text, partial(factory, **options) if options else factory, axes)


def engines_module(name: str) -> Any:
    return importlib.import_module(f"{PACKAGE}.{name}")


def collection(prefix: str) -> Mapping[str, Any]:
    """Returns the engines of a prefix by name: what the package says of each."""
    _, module, table = COLLECTIONS[prefix]
    return dict(getattr(engines_module(module), table))


faults = partial(collection, names.FAULT_PREFIX)
oddities = partial(collection, names.ODD_PREFIX)


def reference_factory() -> EngineFactory:
    """Returns the factory of the engine whose answers are the specification."""
    return resolve_engine(names.REFERENCE).factory


_folders: list[Path] = []  # of engine files, as `sys.path` has them: searched last


class TwoHelpersError(ImportError):
    """The folders of two engine files each hold a helper of the same name."""


def load_factory(text: str, target: str) -> Callable[..., Engine]:
    """Returns the factory of `pkg.mod:factory` or `path.py:factory`. `text` names the engine in errors.
    Raises `UsageError` if it cannot be imported, or is no factory."""
    module_name, _, attribute = target.rpartition(":")
    is_file = module_name.endswith(".py")
    if is_file and not Path(module_name).resolve().is_file():
        where = "" if Path(module_name).is_absolute() else f" in {str(Path.cwd())!r}"
        raise engine_error(text, f"there is no file {module_name!r}{where}")
    try:
        module = engine_module(Path(module_name)) if is_file else importlib.import_module(module_name)
    except TwoHelpersError as error:
        raise engine_error(text, str(error)) from None
    except (Exception, SystemExit) as error:
        what = f"{'running' if is_file else 'importing'} {module_name!r}"
        raised = f"{what} raised {type(error).__name__}: {error}{place_words(error)}"
        raise engine_error(text, raised) from error
    if not hasattr(module, attribute):
        own = inspect.getmembers(module, lambda it: getattr(it, "__module__", "") == module.__name__)
        callables = [name for name, value in own if callable(value) and not name.startswith("_")]
        listed = ", ".join(callables) or "none"
        raise engine_error(
            text, f"{module_name} has no attribute {attribute!r}; its callables are {listed}"
        )
    factory = getattr(module, attribute)
    if not callable(factory) or isinstance(factory, EnumMeta):
        kind = "an enumeration" if callable(factory) else f"a {type(factory).__name__}"
        rule = "a factory(model, config) that returns an engine"
        raise engine_error(text, f"{attribute!r} is {kind}, but must be {rule}")
    return factory


def engine_module(path: Path) -> ModuleType:
    """Runs the Python file as a module whose name no other file has, and returns it. Raises
    `TwoHelpersError`, and what the file raises."""
    path = path.resolve()
    name = f"batchproof_engine_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, f"{path} ends in .py"
    assert spec.loader is not None, f"{path} ends in .py"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their own module up
    _add_folder(path.parent)
    spec.loader.exec_module(module)
    return module


def _add_folder(folder: Path) -> None:
    if folder in _folders:
        return
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and "." not in name and (_holder(file) in _folders) and _holds(folder, name):
            raise _two_helpers(name, [_holder(file), folder])
    _folders.append(folder)
    sys.path.append(str(folder))
    if _AmbiguousHelpers not in sys.meta_path:
        sys.meta_path.insert(0, _AmbiguousHelpers)


class _AmbiguousHelpers:
    """Refuses an import that would take its module from the folder of another engine's file."""

    @staticmethod
    def find_spec(name: str, path: object = None, _target: object = None) -> ModuleSpec | None:
        holders = [] if path or "." in name else [each for each in _folders if _holds(each, name)]
        if len(holders) > 1:
            others = [each for each in sys.path if Path(each).resolve() not in _folders]
            if PathFinder.find_spec(name, others) is None:  # else that one comes first
                raise _two_helpers(name, holders)
        return None


def _holds(folder: Path, name: str) -> bool:
    return (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file()


def _holder(file: str) -> Path:
    path = Path(file).resolve()
    return path.parents[1] if path.name == "__init__.py" else path.parent


def _two_helpers(name: str, folders: list[Path]) -> TwoHelpersError:
    return TwoHelpersError(
        f"{' and '.join(map(str, folders))} each hold a module {name!r}, of which a process can import "
        f"only one; rename one, or test the engines in two runs"
    )
