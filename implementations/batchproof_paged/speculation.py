"""Speculative decoding: drafts ride along in a step, and the step itself shows which of them hold.

    schedule -> drafted: a decode's row gets as many drafts as budget, blocks and cap have room for
             -> one pass over all rows, which chooses a token behind each token of such a row
             -> verified: drafts that equal the choice before them stay, up to the first that does not

Drafts that are rejected leave keys behind, which the next step overwrites before anything reads them.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

from batchproof_paged.batch import RaggedBatch
from batchproof_paged.drafting import Drafter
from batchproof_paged.rows import Rows
from batchproof_paged.runner import Flight
from batchproof_paged.scheduler import Scheduler
from batchproof_paged.sequence import Sequence


class Verified(NamedTuple):
    """What a step with drafts comes to."""

    flight: Flight  # a row for each token that stays
    rows: Rows  # of the step, without the rejected drafts
    last: list[int]  # (S,) the place in the flight of each sampled row's last token


class Speculator:
    """Extends the rows of a step by drafts, and settles afterwards what they were worth."""

    def __init__(self, drafter: Drafter, most: int) -> None:
        self._drafter = drafter
        self._most = most

    def drafted(self, rows: Rows, scheduler: Scheduler) -> Rows:
        """Returns the plan of a step with drafts in its decodes."""
        room = scheduler.room_for_drafts(rows, self._most)
        for sequence, drafts in zip(rows.sequences, self._drafter.propose(rows, room), strict=True):
            sequence.drafts, sequence.num_accepted = drafts, 0
        query_lens = [
            query_len + len(sequence.drafts)
            for sequence, query_len in zip(rows.sequences, rows.query_lens, strict=True)
        ]
        return replace(rows, query_lens=query_lens)

    def verified(self, batch: RaggedBatch, flight: Flight) -> Verified:
        """Returns what stays of a step. Its accepted drafts are tokens of their sequences now, all but
        each row's last token, which `Scheduler.update` appends."""
        choices, kept, counts = flight.land(), list[int](), list[int]()
        sequences: list[Sequence] = []
        context_lens: list[int] = []
        first = 0
        for sequence, context_len, query_len, _ in flight.sampled:
            num = len(sequence.drafts)
            count = self.num_right(sequence, choices[first : first + num + 1])
            sequence.num_accepted = count - 1
            sequence.token_ids += choices[first : first + count - 1]
            end = context_len + query_len - num
            sequences += [sequence] * count
            context_lens += range(end - 1, end - 1 + count)
            kept += range(first, first + count)
            counts.append(count)
            first += num + 1
        tokens = [choices[place] for place in kept]
        logits = None if flight.logits is None else flight.logits[kept]
        landed = Flight(Rows.decodes(sequences, context_lens), lambda: tokens, logits)
        return Verified(landed, _settled(batch.scheduled), [end - 1 for end in accumulate(counts)])

    def num_right(self, sequence: Sequence, choices: list[int]) -> int:
        """Returns how many of a row's choices stay: those behind right drafts, up to an EOS."""
        num = 1
        for draft, choice in zip(sequence.drafts, choices, strict=False):
            if draft != choice or choice in sequence.request.eos_token_ids:
                break
            num += 1
        return num


def _settled(rows: Rows) -> Rows:
    query_lens = [
        query_len - len(sequence.drafts) + sequence.num_accepted
        for sequence, query_len in zip(rows.sequences, rows.query_lens, strict=True)
    ]
    return replace(rows, query_lens=query_lens)
