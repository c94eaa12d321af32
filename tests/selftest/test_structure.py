"""The rooms of the package stand on floors: an import goes down, never up and never in a circle."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

from batchproof.places import PACKAGE, ROOT

PAGE = ROOT / "docs" / "structure.md"
DOORS = ("__init__", "__main__", "__pycache__")


@cache
def rooms() -> dict[str, set[str]]:
    """Room -> the rooms that it imports from when it runs."""
    found: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if room not in DOORS:
            imported = set(imports(ast.parse(path.read_text(encoding="utf-8"))))
            found.setdefault(room, set()).update(imported - {room})
    return found


def imports(node: ast.AST) -> Iterator[str]:
    """What stands under `if TYPE_CHECKING` is for readers, and not imported."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.ImportFrom) and child.module:
            package, _, rest = child.module.partition(".")
            if package == "batchproof":
                yield from [rest.partition(".")[0]] if rest else (alias.name for alias in child.names)
        yield from imports(child)


def floor(room: str, above: tuple[str, ...] = ()) -> int:
    assert room not in above, f"a circle: {' -> '.join([*above, room])}"
    return max((1 + floor(each, (*above, room)) for each in rooms()[room]), default=0)


def test_the_page_lists_every_room_on_its_floor() -> None:
    rows = re.findall(r"^\| (\d+) \| `([a-z]+)(?:/|\.py)` \|", PAGE.read_text(encoding="utf-8"), re.M)
    assert {room: int(number) for number, room in rows} == {room: floor(room) for room in rooms()}


def test_oracles_and_schedulers_import_no_torch() -> None:
    oracles = sorted((PACKAGE / "models").glob("*_oracle.py"))
    assert oracles
    paged = ROOT / "implementations" / "batchproof_paged"
    schedulers = [paged / f"{name}.py" for name in ("sequence", "block_manager", "scheduler", "rows")]
    for path in (*oracles, *schedulers):
        heavy = re.search(
            r"^\s*(?:import|from) (?:torch|transformers)\b", path.read_text(encoding="utf-8"), re.M
        )
        assert heavy is None, f"{path}: {heavy}"
