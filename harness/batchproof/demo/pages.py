"""What the demo prints: requests, timelines, totals, and the check."""

import textwrap
from collections.abc import Mapping, Sequence

from batchproof.demo.experiment import Experiment, Judgement, TimedRun, num_tokens
from batchproof.records.texts import counted
from batchproof.run.timeline import Cell, Timeline, num_refills

IDLE = "."  # a slot without a request
WIDTH = 80
MARGIN = 12  # of a timeline, where its slots are named


def prose(sentences: str) -> list[str]:
    return textwrap.wrap(sentences, WIDTH, initial_indent="   ", subsequent_indent="   ")


def heading(case: Experiment) -> list[str]:
    subject = case.subject
    lines = [
        "STATIC WAVES AGAINST CONTINUOUS BATCHING",
        *prose(
            f"model {subject.name}, device {subject.model.device}, {subject.dtype_name}, "
            f"{counted(case.num_slots, 'slot')}, {counted(len(case.requests), 'request')}"
        ),
        "",
        *prose(
            "A batch has a fixed number of slots, one for each sequence in flight. A step is one pass "
            "through the model. In its first step a sequence feeds its whole prompt (prefill), in each "
            "later one the token it has just got (decode); every step ends in one new token for each. "
            "`static` fills all slots at once and waits for the longest answer of the wave; `ragged` "
            "and `paged` fill a slot in the step after it has come free."
        ),
        "",
        "1  THE REQUESTS, in order of arrival",
        "   id   prompt tokens   new tokens   prompt",
    ]
    for request in case.requests:
        counts = f"{len(request.prompt_token_ids):>13}   {request.max_new_tokens:>10}"
        lines.append(f"    {request.request_id}   {counts}   {case.texts[request.request_id]!r:.43}")
    return [*lines, "   No end-of-sequence token is set, so each runs to exactly its cap."]


def timelines(by_name: Mapping[str, Timeline]) -> list[str]:
    """Returns the slot timelines of all engines: a line for a slot, a letter for a step."""
    lines = [
        "2  SLOT TIMELINES, to one scale",
        *prose(
            "A letter is one slot in one step: upper case while the prompt is prefilled, lower case "
            f"while tokens are decoded, {IDLE} where the slot is idle. Static batching has a barrier "
            "(^) where a wave ends."
        ),
    ]
    for name, timeline in by_name.items():
        lines += ["", f"   {name}: {len(timeline.steps)} steps"]
        for slot in range(timeline.num_slots):
            lines.append(f"{f'     slot {slot + 1}':<{MARGIN + 3}}{letters(timeline.row(slot))}")
        if timeline.barriers:
            ruler = "".join("^" if i in timeline.barriers else " " for i in range(len(timeline.steps)))
            lines.append(f"{'     barrier':<{MARGIN + 3}}{ruler}".rstrip())
    return lines


def letters(row: Sequence[Cell | None]) -> str:
    """Returns one slot as text, a letter for each step."""
    return "".join(
        IDLE if cell is None else cell.request.upper() if cell.is_prefill else cell.request.lower()
        for cell in row
    )


def totals(case: Experiment, by_name: Mapping[str, TimedRun]) -> list[str]:
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
    lines = [f"3  TOTALS: the same requests, {counted(case.num_slots, 'slot')} each"]
    lines.append(f"   {'':<38}" + "".join(f"{name:>12}" for name in by_name))
    lines += [f"   {what:<38}" + "".join(f"{v:>12}" for v in values) for what, values in table.items()]
    sentence = (
        "Occupancy is the share of slot-steps that fed a token of an unfinished request. The time is "
        "of one run after a warm-up on the same shapes, so it is no benchmark. `ragged` is written to "
        "be read and copies every cached key in every step, so that fewer steps need not take less "
        "time on a small model."
    )
    return [*lines, "", *prose(sentence)]


def verdict(case: Experiment, judgements: Mapping[str, Judgement]) -> list[str]:
    """Returns the comparison with per-prompt generation."""
    lines = ["4  THE CHECK: every answer against generating its prompt alone"]
    for name, judgement in judgements.items():
        lines.append(
            f"   {name:<12}{judgement.num_equal} of {len(case.requests)} answers equal, "
            f"{counted(judgement.ledger.num_steps, 'token')} compared, "
            f"{counted(judgement.ledger.num_near_ties, 'near-tie')}"
        )
        lines += [f"   near-tie: {each}" for each in judgement.near_ties]
        for failure in judgement.failures:
            first, *evidence = failure.splitlines()
            lines += [f"   {name} DIFFERS: {first}", *(f"   {line}" for line in evidence)]
    return [*lines, "", f"   {_last_word(judgements)}"]


def _last_word(judgements: Mapping[str, Judgement]) -> str:
    wrong = [name for name, judgement in judgements.items() if judgement.failures]
    if wrong:
        return f"WRONG ANSWERS from {' and '.join(wrong)}: batching changed more than the speed."
    if any(judgement.near_ties for judgement in judgements.values()):
        return "Batching changed nothing but the speed, and near-ties that rounding explains."
    return "Batching changed nothing but the speed."
