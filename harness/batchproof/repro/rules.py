"""Functions that scripts are made of: what a trace must show (P7, P9, P10, P11), and a mask (P6).

They say in a few lines each what `batchproof.checks.trace` says with evidence and words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil

from batchproof.api import (
    Completion,
    EngineConfig,
    Request,
    RowRecord,
    StepRecord,
)


def show(trace: Sequence[StepRecord], wrong: Sequence[str]) -> None:
    """The steps that are named as wrong, and those beside them."""
    named = {int(line.split()[1].rstrip(":")) for line in wrong if line.startswith("step ")}
    for step, record in enumerate(trace):
        if not named or any(abs(step - each) <= 1 for each in named):
            print(
                f"  {'->' if step in named else '  '} step {step}: blocks free {record.num_free_blocks}"
            )
            for row in record.rows:
                print(f"        {row}")
            for word in ("admitted", "waiting", "preempted", "finished"):
                if getattr(record, word):
                    print(f"        {word}: {', '.join(getattr(record, word))}")


def replay(
    trace: Sequence[StepRecord],
) -> Iterator[tuple[int, StepRecord, list[str], dict[str, int], dict[str, int]]]:
    """Step by step: who holds a slot in it, and what each had cached and been given before it."""
    running: list[str] = []
    cached: dict[str, int] = {}
    given: dict[str, int] = {}
    for step, record in enumerate(trace):
        cached |= dict.fromkeys(record.preempted, 0)
        running = [each for each in running if each not in record.preempted] + list(record.admitted)
        yield step, record, running, dict(cached), dict(given)
        for row in record.rows:
            cached[row.request_id] = row.context_len + row.query_len
            given[row.request_id] = given.get(row.request_id, 0) + row.is_sampled
        running = [each for each in running if each not in record.finished]


def wrong_names(trace: Sequence[StepRecord], requests: Sequence[Request]) -> Iterator[str]:
    """The trace names only who asked."""
    known = {request.request_id for request in requests}
    for step, record in enumerate(trace):
        named = {row.request_id for row in record.rows}
        named |= {*record.waiting, *record.admitted, *record.finished, *record.preempted}
        if named - known:
            yield f"step {step}: nobody asked for {sorted(named - known)}"


def wrong_positions(
    trace: Sequence[StepRecord], requests: Sequence[Request], can_share: bool
) -> Iterator[str]:
    """A row goes on where its cache ends; a token is taken exactly when all that is known is fed."""
    prompts = {request.request_id: len(request.prompt_token_ids) for request in requests}
    for step, record, _, cached, given in replay(trace):
        for row in record.rows:
            before = cached.get(row.request_id, 0) or (row.context_len if can_share else 0)
            known = prompts[row.request_id] + given.get(row.request_id, 0)
            end = row.context_len + row.query_len
            if (
                row.context_len != before
                or not before < end <= known
                or row.is_sampled != (end == known)
            ):
                yield f"step {step}: {row}, but {before} of {known} tokens were fed before"


def wrong_hits(
    served: Sequence[tuple[Sequence[Request], Sequence[Completion], Sequence[StepRecord]]],
) -> Iterator[str]:
    """A request may begin behind a prefix that some request of some call has computed."""
    computed: list[tuple[int, ...]] = []
    num_before = 0
    for requests, completions, trace in served:
        answered = zip(requests, completions, strict=False)
        tokens = {r.request_id: (*r.prompt_token_ids, *c.token_ids) for r, c in answered}
        for step, record, _, cached, _ in replay(trace):
            for row in sorted(record.rows, key=lambda row: row.context_len):
                prefix = tokens[row.request_id][: row.context_len]
                is_hit = row.context_len > 0 and not cached.get(row.request_id, 0)
                if is_hit and not any(each[: len(prefix)] == prefix for each in computed):
                    yield f"step {num_before + step}: {row}, but nobody has computed these"
                computed.append(tokens[row.request_id][: row.context_len + row.query_len])
        num_before += len(trace)


def wrong_limits(
    trace: Sequence[StepRecord], config: EngineConfig, has_token_budget: bool
) -> Iterator[str]:
    """One row a request, no more rows than slots, no more tokens than the step may hold."""
    for step, record in enumerate(trace):
        ids = [row.request_id for row in record.rows]
        fed = sum(row.query_len for row in record.rows)
        if len(set(ids)) < len(ids) or len(ids) > config.max_num_seqs:
            yield f"step {step}: rows {ids}, but max_num_seqs is {config.max_num_seqs}"
        if has_token_budget and fed > config.max_num_batched_tokens:
            yield f"step {step}: {fed} tokens, but the limit is {config.max_num_batched_tokens}"


def wrong_turns(trace: Sequence[StepRecord], arrival_order: Sequence[str]) -> Iterator[str]:
    """First come, first served: nobody is admitted before one who came earlier and waits."""
    turn = arrival_order.index
    firsts: list[str] = []
    for step, record in enumerate(trace):
        for waiting in record.waiting:
            for admitted in record.admitted:
                if turn(admitted) > turn(waiting):
                    yield f"step {step}: {admitted!r} was admitted before {waiting!r}"
        for admitted in record.admitted:
            if admitted not in firsts:
                if firsts and turn(admitted) < turn(firsts[-1]):
                    yield f"step {step}: {admitted!r} was admitted after {firsts[-1]!r}"
                firsts.append(admitted)


def wrong_slots(
    trace: Sequence[StepRecord], requests: Sequence[Request], config: EngineConfig, can_chunk: bool
) -> Iterator[str]:
    """A free slot is filled if somebody waits who surely fits, in the step and in the pool."""
    by_id = {request.request_id: request for request in requests}
    num_free = next((record.num_total_blocks for record in trace), None)
    for step, record, running, cached, given in replay(trace):
        room = config.max_num_batched_tokens - sum(row.query_len for row in record.rows)
        free, num_free = num_free, record.num_free_blocks
        if not record.waiting or record.preempted or len(running) >= config.max_num_seqs:
            continue
        head = by_id[record.waiting[0]]
        length = len(head.prompt_token_ids) + given.get(head.request_id, 0)
        ends = {row.request_id: row.context_len + row.query_len for row in record.rows}
        new = (end - cached.get(each, 0) for each, end in ends.items())
        fed = sum(ceil(length / config.block_size) + 1 for length in new)
        life = ceil((len(head.prompt_token_ids) + head.max_new_tokens) / config.block_size)
        if record.num_total_blocks is not None and (free is None or free < fed + life):
            continue
        if room >= (1 if can_chunk else length):
            yield (
                f"step {step}: {len(running)} of {config.max_num_seqs} slots are used, but "
                f"{head.request_id!r} waits ({room} tokens left in the step)"
            )


def wrong_blocks(
    trace: Sequence[StepRecord], requests: Sequence[Request], config: EngineConfig
) -> Iterator[str]:
    """Used blocks have an owner who can fill them, and at the end all are free."""
    size = config.block_size
    most = {r.request_id: ceil((len(r.prompt_token_ids) + r.max_new_tokens) / size) for r in requests}
    for step, record, running, cached, _ in replay(trace):
        free, total = record.num_free_blocks, record.num_total_blocks
        if free is None or total is None:
            continue
        cached |= {row.request_id: row.context_len + row.query_len for row in record.rows}
        owners = [each for each in running if each not in record.finished]
        least = max((ceil(cached.get(each, 0) / size) for each in owners), default=0)
        if total != trace[0].num_total_blocks or not 0 <= free <= total:
            yield f"step {step}: {free} blocks of {total} are free"
        elif not least <= total - free <= sum(most[each] for each in owners):
            yield f"step {step}: {total - free} blocks are used, but {owners} need at least {least}"
    yield from wrong_leftovers(trace)


def wrong_leftovers(trace: Sequence[StepRecord], num_rows: int | None = None) -> Iterator[str]:
    """At the end all blocks are free; `num_rows` have been fed last."""
    if trace and num_rows not in (None, len(trace[-1].rows)):
        yield f"step {len(trace) - 1}: rows {trace[-1].rows}, but should be {num_rows}"
    if trace and trace[-1].num_free_blocks != trace[-1].num_total_blocks:
        free, total = trace[-1].num_free_blocks, trace[-1].num_total_blocks
        yield f"step {len(trace) - 1}: at the end {free} of {total} blocks are free"


def wrong_mask(got: list[list[bool]], rows: Sequence[RowRecord], window: int | None) -> Iterator[str]:
    """A query sees the keys of its own sequence up to itself, inside its window."""
    fed = [
        (row.request_id, row.context_len + offset) for row in rows for offset in range(row.query_len)
    ]
    cached = [(row.request_id, position) for row in rows for position in range(row.context_len)]
    for q, (query, position) in enumerate(fed):
        for k, (key, place) in enumerate(cached + fed):
            distance = position - place
            should_see = query == key and distance >= 0 and (window is None or distance < window)
            if len(got) != len(fed) or len(got[q]) != len(cached + fed) or got[q][k] != should_see:
                yield f"query {q} and key {k}: should {'' if should_see else 'not '}see"
