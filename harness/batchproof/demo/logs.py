"""The slot log of each engine: by waves, and by steps."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Sequence

from batchproof.api import StepRecord
from batchproof.demo.experiment import Experiment, TimedRun
from batchproof.run.timeline import Cell, num_refills, waves

IDLE = "."  # a slot without a request
PROSE_WIDTH = 80  # longer lines read badly, however wide the terminal is


def prose(sentences: str, width: int, indent: str = "   ") -> list[str]:
    return textwrap.wrap(
        sentences, min(width, PROSE_WIDTH), initial_indent=indent, subsequent_indent=indent
    )


def many(count: int, noun: str) -> str:
    """Returns a count with its noun: `1 slot`, `3 slots`."""
    return f"{count} {noun}" + ("" if count == 1 else "s")


def listed(words: Sequence[str]) -> str:
    """Returns `A`, `A and B`, or `A, B and C`."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def span(steps: range) -> str:
    """Returns steps that count from 0 as people count them, from 1: `4` or `4-9`."""
    return str(steps.start + 1) if len(steps) == 1 else f"{steps.start + 1}-{steps.stop}"


def quoted(text: str, width: int) -> str:
    """Returns a text in quotes on one line, at most `width` columns, shortened with `...` if needed.

    Control characters are escaped, and a wide character counts as the two columns it takes.
    """
    visible = [each if each.isprintable() else repr(each)[1:-1] for each in text]
    room = width - 2
    if sum(map(_columns, visible)) > room:
        room -= len("...")
        while sum(map(_columns, visible)) > room:
            visible.pop()
        visible.append("...")
    return f'"{"".join(visible)}"'


def _columns(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in text)


def shortened(token_ids: Sequence[int], width: int) -> str:
    """Returns token ids in at most `width` columns, with how many are left out."""
    for count in range(len(token_ids), 0, -1):
        rest = len(token_ids) - count
        line = " ".join(map(str, token_ids[:count])) + (f" ... ({rest} more)" if rest else "")
        if len(line) <= width:
            return line
    return many(len(token_ids), "token")


def static_log(case: Experiment, run: TimedRun, width: int) -> list[str]:
    """Returns for each wave the request in each slot, its padding, and for how many steps the slot
    idles.
    """
    lines = [
        f"2  STATIC BATCHING (engine `{run.name}`)",
        *prose(
            "Requests enter in waves. Shorter prompts are padded on the left to the longest of the "
            "wave. A finished request keeps its slot, idle, until the whole wave is done.",
            width,
        ),
    ]
    for number, wave in enumerate(waves(run.trace), start=1):
        lines += ["", f"   wave {number}: steps {span(wave)}"]
        lines += _wave_slots(case, run, wave)
        waiting = run.trace[wave.start].waiting
        if waiting:
            lines += _barrier(run, wave, waiting, width)
    return lines


def _wave_slots(case: Experiment, run: TimedRun, wave: range) -> list[str]:
    longest = max(row.query_len for row in run.trace[wave.start].rows)
    lines = []
    for slot in range(case.num_slots):
        cells = run.timeline.row(slot)[wave.start : wave.stop]
        first = cells[0]
        num_idle = cells.count(None)
        if first is None:
            what = "-  empty"
        else:
            done = wave.start + max(i for i, cell in enumerate(cells) if cell)
            pads = longest - first.num_tokens
            what = f"{first.request}  {pads:>3} pads + {first.text[2:]:<12} done at step {done + 1:>3}"
        lines.append(f"     slot {slot + 1:>2}  {what:<44}  {num_idle:>3} idle steps")
    return lines


def _barrier(run: TimedRun, wave: range, waiting: Sequence[str], width: int) -> list[str]:
    last = run.timeline.steps[wave.stop - 1]
    idle = [str(slot + 1) for slot, cell in enumerate(last) if cell is None]
    title = f" BATCH BARRIER after step {wave.stop} "
    lines = [f"   {title:=^{min(width, 80) - 6}}"]
    if idle:
        slots = f"slot{'s' if len(idle) > 1 else ''} {listed(idle)}"
        lines += prose(f"{slots} stood idle while {listed(waiting)} waited", width, "     ")
    return lines


def continuous_log(case: Experiment, run: TimedRun, width: int) -> list[str]:
    """Returns the steps; those in which no request enters or ends share a line."""
    num_wanted, num_filled = num_refills(run.trace)
    lines = [
        f"3  CONTINUOUS BATCHING (engine `{run.name}`)",
        *prose(
            "Nothing is padded and no request waits for its neighbours: a finished one leaves at once, "
            "and the next in line is prefilled in the next step, in one pass with the others' decodes.",
            width,
        ),
        "",
    ]
    all_cells = run.timeline.steps
    column = max(len(c.text) for step in all_cells for c in step if c) + 2
    header = "".join(f"{f'slot {slot + 1}':<{column}}" for slot in range(case.num_slots))
    lines.append(f"   {'step':<8}{header}".rstrip())
    for steps in _alike(run, all_cells):
        texts = (cell.text if cell else IDLE for cell in all_cells[steps.start])
        cells = "".join(f"{text:<{column}}" for text in texts)
        lines += _log_lines(span(steps), cells, _events(run.trace[steps.start]), width)
    if num_wanted:
        sentence = (
            f"Slots that came free while a request waited: {num_wanted}. Filled again in the very next "
            f"step: {num_filled}."
        )
        lines += ["", *prose(sentence, width)]
    return lines


def _alike(run: TimedRun, all_cells: Sequence[tuple[Cell | None, ...]]) -> list[range]:
    """Returns ranges of steps with the same cells, in which no request enters or ends."""
    ranges: list[range] = []
    for step, cells in enumerate(all_cells):
        is_quiet = step > 0 and _is_quiet(run.trace[step]) and _is_quiet(run.trace[step - 1])
        if is_quiet and cells == all_cells[step - 1]:
            ranges[-1] = range(ranges[-1].start, step + 1)
        else:
            ranges.append(range(step, step + 1))
    return ranges


def _is_quiet(record: StepRecord) -> bool:
    return not (record.admitted or record.finished or record.preempted)


def _events(record: StepRecord) -> str:
    return ", ".join(
        f"{listed(ids)} {verb}{'s' if len(ids) == 1 else ''}"
        for ids, verb in ((record.admitted, "enter"), (record.finished, "end"))
        if ids
    )


def _log_lines(steps: str, cells: str, events: str, width: int) -> list[str]:
    """Returns a step's cells with its events behind them, or below if there is no room."""
    line = f"   {steps:<8}{cells}"
    if len(line + events) <= width:
        return [(line + events).rstrip()]
    return [line.rstrip(), f"{'':<13}{events}"]
