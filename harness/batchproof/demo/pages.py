"""The other sections of the demo: requests, one packed step, timelines, totals, and the check."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from batchproof.api import MaskingEngine, RowRecord, StepRecord
from batchproof.demo.experiment import Experiment, Judgement, TimedRun, num_tokens
from batchproof.demo.prose import many, prose, quoted, shortened
from batchproof.drawing.mask_text import draw_mask, token_row
from batchproof.timeline import IDLE, Timeline, is_prefill, num_refills
from batchproof.timeline_text import draw_timelines


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


def packed_step(case: Experiment, run: TimedRun, width: int) -> list[str]:
    """Returns the step that shows best how prefill and decode share a pass, with its mask."""
    index = _most_telling(case, run.trace)
    record = run.trace[index]
    lines = [f"4  ONE PACKED STEP: step {index + 1} of the run above"]
    if not _is_mixed(case, record):
        lines += prose(
            "No step of this run mixes prefill and decode: no request entered while another decoded.",
            width,
        )
    sentence = (
        f"Fed to the model as one row, without a pad: {many(num_tokens(record), 'token')} of "
        f"{many(len(record.rows), 'sequence')}."
    )
    lines += [*prose(sentence, width), "", *token_row(record.rows, width), ""]
    lines += [_row_in_words(case, run, row, width) for row in record.rows]
    mask = cast(MaskingEngine, run.engine).attention_mask(record.rows)
    farthest = int(mask.sum(dim=1).max())
    has_window = farthest < max(row.context_len + row.query_len for row in record.rows)
    sentence = (
        "The attention mask keeps them apart: a line for each fed token (query), a column for each "
        "key, a # where the query may look and a dot where it may not. Each sees the keys of its own "
        "sequence, up to its own position"
        + (f" (the model has a window: the last {farthest})" if has_window else "")
        + ", and nothing else."
    )
    return [*lines, "", *prose(sentence, width), "", *draw_mask(record.rows, mask, width)]


def _is_mixed(case: Experiment, record: StepRecord) -> bool:
    kinds = {is_prefill(row, case.prompt_lens[row.request_id]) for row in record.rows}
    return len(kinds) == 2


def _most_telling(case: Experiment, trace: tuple[StepRecord, ...]) -> int:
    """Returns the index of the step to show: mixed before unmixed, then the most sequences, then the
    narrowest mask.
    """

    def rank(index: int) -> tuple[bool, int, int]:
        rows = trace[index].rows
        num_keys = sum(row.context_len + row.query_len for row in rows)
        return not _is_mixed(case, trace[index]), -len(rows), num_keys

    return min(range(len(trace)), key=rank)


def _row_in_words(case: Experiment, run: TimedRun, row: RowRecord, width: int) -> str:
    """Returns kind, positions, cache and content of one sequence's share of the step."""
    request = next(each for each in case.requests if each.request_id == row.request_id)
    answer = next(each for each in run.completions if each.request_id == row.request_id)
    end = row.context_len + row.query_len
    fed = (*request.prompt_token_ids, *answer.token_ids)[row.context_len : end]
    phase = "PREFILL" if is_prefill(row, len(request.prompt_token_ids)) else "decode"
    single = f"position {row.context_len}"
    positions = single if row.query_len == 1 else f"positions {row.context_len}-{end - 1}"
    line = (
        f"    {row.request_id}   {f'{phase}({row.query_len})':<14} {positions:<18} "
        f"{row.context_len:>5} keys cached   "
    )
    is_text = phase == "PREFILL" or case.subject.tokenizer is not None
    return line + (
        quoted(case.subject.decode(fed), width - len(line)) if is_text else f"token {fed[0]}"
    )


def timelines(by_name: Mapping[str, Timeline], width: int) -> list[str]:
    """Returns the slot timelines of all engines, to one scale."""
    sentence = (
        "A letter is one slot in one step: upper case while the prompt is prefilled, lower case while "
        f"tokens are decoded, {IDLE} where the slot is idle."
    )
    drawn = [f"   {line}" for line in draw_timelines(by_name, width - 3)]
    return ["5  SLOT TIMELINES, to one scale", *prose(sentence, width), "", *drawn]


def totals(case: Experiment, by_name: Mapping[str, TimedRun], width: int) -> list[str]:
    """Returns the counts of each engine, and the time of one run."""
    runs = list(by_name.values())
    refills = [num_refills(each.trace) for each in runs]
    delivered = [sum(len(c.token_ids) for c in each.completions) for each in runs]
    table = {
        "steps (passes through the model)": [str(each.timeline.num_steps) for each in runs],
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
    lines = [f"6  TOTALS: the same requests, {many(case.num_slots, 'slot')} each"]
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
    lines = ["7  THE CHECK: every answer against generating its prompt alone"]
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
