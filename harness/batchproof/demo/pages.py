"""The other sections of the demo: requests, timelines, totals, and the check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import ceil

from batchproof.demo.experiment import Experiment, Judgement, TimedRun, num_tokens
from batchproof.demo.logs import IDLE, many, prose, quoted, shortened
from batchproof.run.timeline import Cell, Timeline, num_refills


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
