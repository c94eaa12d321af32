"""The picture of a matrix: what broke x cell, as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from textwrap import shorten
from xml.sax.saxutils import escape

from batchproof.records.matrix import MatrixRecord, told_rows
from batchproof.records.texts import counted
from batchproof.records.verdict import RequirementOutcome

ROW, LEFT, COLUMN, TOP = 24, 520, 74, 40  # pixels
LONGEST_LABEL, LONGEST_HEAD = 62, 10  # characters
NOTE = 20  # pixels
COLORS: Mapping[RequirementOutcome, str] = {"held": "#5aa469", "failed": "#c94f4f", "known": "#c94f4f"}
OTHER = "#d9d9d9"  # not asked, or not decided
STYLE = "text { font: 12px sans-serif; fill: #222 } .on { fill: #fff; text-anchor: middle }"


def matrix_picture(record: MatrixRecord, columns: Sequence[str]) -> str:
    """Returns the picture: a row for all requirements that broke in the same cells. Names that are
    wider than a column stand below, by number."""
    rows = told_rows(record)
    heads = [*columns]
    notes = ["green: held; red: broken; grey: not asked or not decided; a number counts requirements"]
    if max(map(len, columns), default=0) > LONGEST_HEAD:
        heads = [str(number) for number in range(1, len(columns) + 1)]
        notes += [f"column {number}: {name}" for number, name in zip(heads, columns, strict=True)]
    under = TOP + ROW * len(rows)
    width, height = LEFT + COLUMN * len(columns) + 10, under + NOTE * len(notes) + 16
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}">',
        f"<style>{STYLE}</style>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for number, name in enumerate(heads):
        middle = LEFT + COLUMN * number + COLUMN // 2
        lines.append(f'<text x="{middle}" y="{TOP - 12}" text-anchor="middle">{escape(name)}</text>')
    for number, ((what, signs), names) in enumerate(rows.items()):
        shown = f"{what}: {names[0].partition('[')[2].rstrip(']')}"
        lines += _row(TOP + ROW * number, shown, signs, len(names))
    for number, note in enumerate(notes, start=1):
        lines.append(f'<text x="10" y="{under + NOTE * number}">{escape(note)}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _row(y: int, what: str, signs: Sequence[RequirementOutcome], num: int) -> Iterator[str]:
    label = escape(shorten(what, LONGEST_LABEL, placeholder=" ..."))
    title = f"<title>{escape(what)}: {counted(num, 'requirement')}</title>"
    yield f'<text x="10" y="{y + 16}">{title}{label}</text>'
    for number, sign in enumerate(signs):
        x = LEFT + COLUMN * number
        color = COLORS.get(sign, OTHER)
        yield f'<rect x="{x}" y="{y}" width="{COLUMN - 2}" height="{ROW - 2}" fill="{color}"/>'
        if sign in COLORS:
            yield f'<text class="on" x="{x + COLUMN // 2}" y="{y + 16}">{num}</text>'
