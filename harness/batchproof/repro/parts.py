"""What a script is made of beside its own functions: the parts it uses, and the imports for it all."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from batchproof import api
from batchproof.checks import happened
from batchproof.repro import (
    late,
    literals,
    looking,
    rules,
    serving,
)

MODULES = ("copy", "importlib", "math", "os", "random", "signal", "sys", "traceback")
NAMES = {
    **{name: "batchproof.api" for name in dir(api) if name[0].isupper()},
    **dict.fromkeys(("Iterable", "Iterator", "Sequence"), "collections.abc"),
    **dict.fromkeys(("AutoModelForCausalLM", "PreTrainedModel"), "transformers"),
    "deepcopy": "copy",
    "partial": "functools",
    "ceil": "math",
    "Path": "pathlib",
    "ModuleType": "types",
    "Any": "typing",
    "NoReturn": "typing",
    "Tensor": "torch",
}
PARTS: dict[str, Callable[..., Any]] = {
    name: part
    for module in (serving, looking, rules, late, happened)
    for name, part in vars(module).items()
    if inspect.isfunction(part) and part.__module__ == module.__name__ and name != "give_up"
}


def parts_of(functions: Iterable[str]) -> list[str]:
    """The source of all parts that these functions use, and those that they use in turn."""
    wanted: set[str] = set()
    sources = list(functions)
    while sources:
        for name in _names(sources.pop()) & PARTS.keys() - wanted:
            wanted.add(name)
            sources.append(inspect.getsource(PARTS[name]))
    return [inspect.getsource(part).rstrip() for name, part in PARTS.items() if name in wanted]


def imports_of(code: str, engine: str) -> str:
    """Standard library, libraries, then the contract and the line that imports the engine."""
    used = _names(code)
    modules = [f"import {each}" for each in MODULES if each in used]
    modules = [line.replace("importlib", _importlib(code)) for line in modules]
    by_module: dict[str, list[str]] = {}
    for name in sorted(used & NAMES.keys()):
        by_module.setdefault(NAMES[name], []).append(name)
    froms = {module: _from(module, names) for module, names in by_module.items()}
    libraries = [froms.pop(each) for each in ("torch", "transformers") if each in froms]
    ours = [froms.pop("batchproof.api"), *([engine] if engine else [])]
    numpy = ["import numpy as np"] if "np" in used else []
    standard = [*modules, *sorted(froms.values())]
    groups = (standard, [*numpy, "import torch", *libraries], ours)
    return "\n\n".join(["from __future__ import annotations", *("\n".join(each) for each in groups)])


def _importlib(code: str) -> str:
    return "importlib.util" if "importlib.util" in code else "importlib"


def _from(module: str, names: list[str]) -> str:
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= literals.WIDTH:
        return line
    return f"from {module} import (\n" + "".join(f"    {name},\n" for name in names) + ")"


def _names(source: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}
