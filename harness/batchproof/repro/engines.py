"""From the text of `--engine` to the lines that make the same engine in a script."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from batchproof.run.registry import (
    BUILT_IN,
    COMMAND_PREFIX,
    FAULT_PREFIX,
    ODD_PREFIX,
    parse_options,
)

FILE_LOADER = '''
def from_file(path: str) -> ModuleType:
    """The module in a file, wherever that is."""
    sys.path.append(str(Path(path).parent))  # so that it can import its neighbours
    spec = importlib.util.spec_from_file_location(f"engine_{Path(path).stem}", path)
    assert spec and spec.loader, f"{path} ends in .py"
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
'''


@dataclass(frozen=True, slots=True)
class EngineText:
    """What names the factory in a script."""

    imports: str  # a line, if any
    expression: str
    functions: str = FILE_LOADER  # also for the one that is named on the command line


def engine_text(name: str) -> EngineText:
    if name.startswith(COMMAND_PREFIX):
        command = name.removeprefix(COMMAND_PREFIX)
        imports = "from batchproof_engines.adapters.piped import command_line"
        return EngineText(imports, f"command_line({command!r})")
    target, _, query = name.partition("?")
    options = parse_options(name, query)
    target = BUILT_IN.get(target, target)
    if target.startswith(FAULT_PREFIX):
        found = _listed("batchproof_engines.faulty", "FAULTS", target.removeprefix(FAULT_PREFIX))
    elif target.startswith(ODD_PREFIX):
        found = _listed("batchproof_engines.odd", "ODDITIES", target.removeprefix(ODD_PREFIX))
    else:
        found = _attribute(*target.rsplit(":", 1))
    if not options:
        return found
    keywords = ", ".join(f"{key}={value!r}" for key, value in options.items())
    return EngineText(found.imports, f"partial({found.expression}, {keywords})", found.functions)


def _listed(module: str, table: str, name: str) -> EngineText:
    return EngineText(f"from {module} import {table}", f'{table}["{name}"].factory')


def _attribute(module: str, attribute: str) -> EngineText:
    if module.endswith(".py"):
        path = str(Path(module).resolve())
        return EngineText("", f'from_file("{path}").{attribute}')
    return EngineText(f"from {module} import {attribute}", attribute)
