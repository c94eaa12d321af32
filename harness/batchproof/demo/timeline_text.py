"""Slot timelines in letters, for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import ceil

from batchproof.timeline import IDLE, Cell, Timeline


def draw_timelines(timelines: Mapping[str, Timeline], width: int) -> list[str]:
    """Returns lines of at most `width` characters, with all timelines to one scale.

    A line stands for a slot and a letter for a step, or for several steps, which the first line then
    states. Request ids are single letters.
    """
    margin = max(len("barrier"), *(len(f"slot {each.num_slots}") for each in timelines.values())) + 3
    longest = max(timeline.num_steps for timeline in timelines.values())
    scale = ceil(longest / (width - margin))
    lines = []
    if scale > 1:
        lines.append(f"One column stands for {scale} steps: it shows what fills most of them.")
    lines.append(f"{'step':<{margin}}{_ruler(ceil(longest / scale), scale)}")
    for name, timeline in timelines.items():
        lines.append(f"{name}: {timeline.num_steps} steps")
        for slot in range(timeline.num_slots):
            lines.append(f"{f'  slot {slot + 1}':<{margin}}{letters(timeline.row(slot), scale)}")
        if timeline.barriers:
            marks = {barrier // scale for barrier in timeline.barriers}
            ruler = "".join("^" if i in marks else " " for i in range(max(marks) + 1))
            lines.append(f"{'  barrier':<{margin}}{ruler}")
    return lines


def letters(row: Sequence[Cell | None], steps_per_column: int = 1) -> str:
    """Returns one slot as text, one letter per column.

    A column of several steps shows what fills most of them (the earlier on a tie), in upper case if a
    prefill of that request is among them.
    """
    columns = []
    for start in range(0, len(row), steps_per_column):
        part = row[start : start + steps_per_column]
        owner = Counter(cell.request if cell else IDLE for cell in part).most_common(1)[0][0]
        has_prefill = any(cell and cell.request == owner and cell.is_prefill for cell in part)
        columns.append(owner.upper() if has_prefill else owner.lower())
    return "".join(columns)


def _ruler(num_columns: int, scale: int) -> str:
    """Returns step numbers at the columns that begin with them: 1, then every tenth column."""
    ruler = [" "] * num_columns
    for column in [0, *range(9, num_columns, 10)]:
        label = str(column * scale + 1)
        if column + len(label) <= num_columns:
            ruler[column : column + len(label)] = label
    return "".join(ruler).rstrip()
