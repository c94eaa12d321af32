"""The other sections of the demo: requests, timelines, totals, and the check."""

from __future__ import annotations

import textwrap
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from math import ceil

from batchproof.api import StepRecord
from batchproof.demo.experiment import Experiment, Judgement, TimedRun, num_tokens
from batchproof.run.timeline import Cell, Timeline, num_refills, waves

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


def heading(case: Experiment, width: int) -> list[str]:
    subject = case.subject
    lines = [
        "STATIC WAVES AGAINST CONTINUOUS BATCHING",
        *prose(
            f"model {subject.name}, device {subject.model.device}, {subject.dtype_name}, "
            f"{many(case.num_slots, 'slot')}, {many(len(case.requests), 'request')}",
            width,
        ),
        "",
        *prose(
            "A batch has a fixed number of slots, one for each sequence in flight. A step is one pass "
            "through the model. In its first step a sequence feeds its whole prompt (prefill), in each "
            "later one the token it has just got (decode); every step ends in one new token for each. "
            "The engines below differ in which request gets a slot, and when.",
            width,
        ),
        "",
        "1  THE REQUESTS, in order of arrival",
        "   id   prompt tokens   new tokens   prompt",
    ]
    for request in case.requests:
        counts = f"{len(request.prompt_token_ids):>13}   {request.max_new_tokens:>10}"
        prompt = quoted(case.texts[request.request_id], width - 37)
        lines.append(f"    {request.request_id}   {counts}   {prompt}")
    return [*lines, "   No end-of-sequence token is set, so each runs to exactly its cap."]


def timelines(by_name: Mapping[str, Timeline], width: int) -> list[str]:
    """Returns the slot timelines of all engines, to one scale."""
    sentence = (
        "A letter is one slot in one step: upper case while the prompt is prefilled, lower case while "
        f"tokens are decoded, {IDLE} where the slot is idle."
    )
    drawn = [f"   {line}" for line in draw_timelines(by_name, width - 3)]
    return ["4  SLOT TIMELINES, to one scale", *prose(sentence, width), "", *drawn]


def draw_timelines(timelines: Mapping[str, Timeline], width: int) -> list[str]:
    """Returns lines of at most `width` characters, with all timelines to one scale.

    A line stands for a slot and a letter for a step, or for several steps, which the first line then
    states. Request ids are single letters.
    """
    margin = max(len("barrier"), *(len(f"slot {each.num_slots}") for each in timelines.values())) + 3
    longest = max(len(timeline.steps) for timeline in timelines.values())
    scale = ceil(longest / (width - margin))
    lines = []
    if scale > 1:
        lines.append(f"One column stands for {scale} steps: it shows what fills most of them.")
    lines.append(f"{'step':<{margin}}{_ruler(ceil(longest / scale), scale)}")
    for name, timeline in timelines.items():
        lines.append(f"{name}: {len(timeline.steps)} steps")
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


def totals(case: Experiment, by_name: Mapping[str, TimedRun], width: int) -> list[str]:
    """Returns the counts of each engine, and the time of one run."""
    runs = list(by_name.values())
    refills = [num_refills(each.trace) for each in runs]
    delivered = [sum(len(c.token_ids) for c in each.completions) for each in runs]
    table = {
        "steps (passes through the model)": [str(len(each.timeline.steps)) for each in runs],
        "new tokens": [str(count) for count in delivered],
        "token positions computed": [str(each.num_fed) for each in runs],
        "  of which padding or idle rows": [
            str(each.num_fed - sum(map(num_tokens, each.trace))) for each in runs
        ],
        "slot-steps": [str(each.timeline.num_slot_steps) for each in runs],
        "  of which busy": [str(each.timeline.num_busy) for each in runs],
        "slot occupancy": [f"{each.timeline.occupancy:.1%}" for each in runs],
        "freed slots refilled in the next step": [f"{got} of {wanted}" for wanted, got in refills],
        "wall time, one run": [f"{each.wall_time_s * 1e3:.1f} ms" for each in runs],
    }
    lines = [f"5  TOTALS: the same requests, {many(case.num_slots, 'slot')} each"]
    lines.append(f"   {'':<38}" + "".join(f"{name:>12}" for name in by_name))
    lines += [f"   {what:<38}" + "".join(f"{v:>12}" for v in values) for what, values in table.items()]
    sentence = (
        "Occupancy is the share of slot-steps that fed a token of an unfinished request. The time is "
        "of one run after a warm-up on the same shapes, so it is no benchmark. `ragged` is written to "
        "be read and copies every cached key in every step, so that fewer steps need not take less "
        "time on a small model."
    )
    return [*lines, "", *prose(sentence, width)]


def verdict(
    case: Experiment, judgements: Mapping[str, Judgement], run: TimedRun, width: int
) -> list[str]:
    """Returns the comparison with per-prompt generation, then the answers themselves."""
    lines = ["6  THE CHECK: every answer against generating its prompt alone"]
    for name, judgement in judgements.items():
        lines.append(
            f"   {name:<12}{judgement.num_equal} of {len(case.requests)} answers equal, "
            f"{many(judgement.ledger.num_steps, 'token')} compared, "
            f"{many(judgement.ledger.num_near_ties, 'near-tie')}"
        )
        for near_tie in judgement.near_ties:
            lines += prose(f"near-tie: {near_tie}", width, " " * 15)
        for failure in judgement.failures:
            first, *evidence = failure.splitlines()
            lines += [f"   {name} DIFFERS: {first}", *(f"   {line}" for line in evidence)]
    lines += ["", f"   The answers of `{run.name}`:"]
    for completion in run.completions:
        if case.subject.tokenizer is None:
            answer = shortened(completion.token_ids, width - 8)
        else:
            answer = quoted(case.subject.decode(completion.token_ids), width - 8)
        lines.append(f"    {completion.request_id}   {answer}")
    return [*lines, "", f"   {_last_word(judgements)}"]


def _last_word(judgements: Mapping[str, Judgement]) -> str:
    wrong = [name for name, judgement in judgements.items() if judgement.failures]
    if wrong:
        return f"WRONG ANSWERS from {' and '.join(wrong)}: batching changed more than the speed."
    if any(judgement.near_ties for judgement in judgements.values()):
        return "Batching changed nothing but the speed, and near-ties that rounding explains."
    return "Batching changed nothing but the speed."
