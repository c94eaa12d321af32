"""A reproduction as one file to paste, with the code of each `setup_x.py` beside it that it imports."""

import ast
import sys
from pathlib import Path


def standalone(script: Path) -> str:
    """Returns the code without docstrings: the imports, then the set-ups, then the script itself."""
    text = script.read_text(encoding="utf-8")
    if "\nfrom setup_" not in text:
        return "\n".join(text.splitlines()[ast.parse(text).body[0].end_lineno :]).strip()
    imports: set[str] = set()
    bodies = _collect(script, imports)
    parts: dict[bool, list[str]] = {True: [], False: []}
    for each in sorted(imports, key=lambda each: (each.startswith("from"), each)):
        module = each.split()[1].partition(".")[0]
        parts[module in sys.stdlib_module_names].append(each)
    text = "\n\n".join("\n".join(each) for each in parts.values() if each)
    for each in bodies:  # two blank lines around a function
        is_function = text.splitlines()[-1].startswith(" ") or each.startswith(("def ", "@"))
        text += ("\n\n\n" if is_function else "\n\n") + each
    return text


def _collect(script: Path, imports: set[str]) -> list[str]:
    """Adds the imports of the script and its set-ups; returns their code, that of the set-ups first."""
    text = script.read_text(encoding="utf-8")
    lines, bodies, end = text.splitlines(), [], 0
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("setup_"):
            bodies += _collect(script.with_name(f"{node.module}.py"), imports)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            imports.add("\n".join(lines[node.lineno - 1 : node.end_lineno]))
        elif end:
            break  # imports stand together, behind the docstring
        end = node.end_lineno or 0
    return [*bodies, "\n".join(lines[end:]).strip()]
