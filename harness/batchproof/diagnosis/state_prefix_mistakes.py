"""Mistakes of a prefix cache with recurrent states: those taken over are not the prefix's own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from batchproof.diagnosis.mistake import Suspect
from batchproof.diagnosis.state_changes import Before, StateMistake, cleared
from batchproof.diagnosis.state_replay import KINDS, Pass, StateReplay, with_states_of

MOST_OTHERS = 6  # sequences whose states are tried
MOST_BORDERS = 8  # of each


def prefix_mistakes(
    replay: StateReplay, suspect: Suspect, passes: Sequence[Pass]
) -> Iterator[StateMistake]:
    """Yields mistakes of what a sequence has behind the tokens that it took over, if it took any."""
    table, num_taken = suspect.table, len(passes[0].token_ids)
    if not table.is_reused[passes[0].last_cell]:
        return
    where = f"behind the {num_taken} tokens it took over"
    change = Before([1], partial(cleared, kinds=KINDS))
    yield StateMistake(f"{where} the states are empty", change)
    earlier = (table.seq[table.step <= passes[0].step]).unique().tolist()
    for number in earlier[: -MOST_OTHERS - 1 : -1]:
        fed = table.sequences[number]
        own = table.index[(table.seq == number) & (table.step < passes[1].step)]
        last, size = int(own.max()) + 1, suspect.config.block_size
        borders = [*range(size, last + 1, size)][-MOST_BORDERS:]
        for end in sorted({num_taken, *borders, fed.num_prompt_tokens, last}):
            tokens = fed.token_ids[:end]
            if not 0 < end <= last or tokens == passes[0].token_ids:
                continue
            theirs = replay.behind(tokens)
            change = Before([1], partial(with_states_of, other=theirs))
            whose = "it had before" if number == suspect.seq else f"{fed.request.request_id!r} had"
            yield StateMistake(f"{where} it has the states that {whose} behind {end}", change)
