"""Speculative decoding: drafts ride along in a step, and the step itself shows which of them hold.

    schedule -> drafted: a decode's row gets as many drafts as budget, blocks and cap have room for
             -> one pass over all rows, which chooses a token behind each token of such a row
             -> verified: drafts that equal the choice before them stay, up to the first that does not

Drafts that are rejected leave keys behind, which the next step overwrites before anything reads them.
"""

from collections.abc import Sequence as Seq
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple, Protocol

from batchproof_engines.stopping import num_right
from batchproof_paged.batch import RaggedBatch
from batchproof_paged.rows import Rows, Scheduled
from batchproof_paged.runner import Flight, ModelRunner
from batchproof_paged.sequence import Sequence

Drafts = list[list[int]]  # by row
NGRAM_LENS = (3, 2)  # the longer one, if it occurred before


class Drafter(Protocol):
    """Proposes how sequences go on."""

    def propose(self, rows: Rows, room: Seq[int]) -> Drafts:
        """Returns up to `room` tokens (R,) for each row of a step, whose other tokens are known."""
        ...


class NgramDrafter:
    """Proposes what followed the last earlier occurrence of a sequence's last tokens: prompt lookup
    decoding (Saxena, 2023)."""

    def propose(self, rows: Rows, room: Seq[int]) -> Drafts:
        pairs = zip(rows.sequences, room, strict=True)
        return [self._found(sequence, num) if num else [] for sequence, num in pairs]

    def _found(self, sequence: Sequence, num: int) -> list[int]:
        tokens, ends = sequence.token_ids, sequence.ngram_ends
        for length in NGRAM_LENS:
            last = ends.get(length, length)
            for place in range(last, len(tokens)):  # those that are followed by a token
                ends[tuple(tokens[place - length : place])] = place
            ends[length] = max(last, len(tokens))
        found = (ends.get(tuple(tokens[-length:])) for length in NGRAM_LENS)
        end = next((each for each in found if each is not None), None)
        return [] if end is None else tokens[end : end + num]


class ModelDrafter:
    """Lets a draft model go on greedily.

    Its keys lie in a pool of its own, in the same blocks and lanes as those of the model, so that a
    block found in the prefix cache holds both. It is fed all that the model is fed.
    """

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner

    def propose(self, rows: Rows, room: Seq[int]) -> Drafts:
        """Returns up to `room` tokens (R,) for each row. Feeds chunks of prompts, too."""
        ends = rows.seq_lens
        shadows = list(map(_shadow, rows.sequences, rows.context_lens))
        fed = [
            Scheduled(shadow, shadow.num_computed_tokens, end - shadow.num_computed_tokens, num > 0)
            for shadow, end, num in zip(shadows, ends, room, strict=True)
        ]
        if not any(rows.context_lens):
            self._runner.begin_run()
        self._feed(Rows.of(fed))
        for index in range(1, max(room, default=0)):
            left = [shadow for shadow, num in zip(shadows, room, strict=True) if num > index]
            self._feed(Rows.decodes(left, [shadow.num_computed_tokens for shadow in left]))
        pairs = zip(rows.sequences, shadows, strict=True)
        return [shadow.token_ids[sequence.num_tokens :] for sequence, shadow in pairs]

    def _feed(self, rows: Rows) -> None:
        """Runs the draft model once and notes what it chose."""
        flight = self._runner.launch(RaggedBatch.of(rows))
        for sequence, end in zip(rows.sequences, rows.seq_lens, strict=True):
            sequence.num_computed_tokens = end
        for sequence, token_id in zip(flight.sampled.sequences, flight.land(), strict=True):
            sequence.token_ids.append(token_id)


def _shadow(sequence: Sequence, context_len: int) -> Sequence:
    """Returns the sequence as the draft model has it: its tokens, blocks and lane, and as many keys as
    are known to be right."""
    if sequence.shadow is None:
        request = replace(sequence.request, sampling=None)
        sequence.shadow = Sequence(request, [], num_computed_tokens=context_len)
    shadow = sequence.shadow
    shadow.token_ids = sequence.token_ids.copy()
    shadow.lane, shadow.block_table = sequence.lane, sequence.block_table
    shadow.num_computed_tokens = min(shadow.num_computed_tokens, context_len)
    return shadow


class Verified(NamedTuple):
    """What a step with drafts comes to."""

    flight: Flight  # a row for each token that stays
    rows: Rows  # of the step, without the rejected drafts
    last: list[int]  # (S,) the place in the flight of each sampled row's last token


class Speculator:
    """Extends the rows of a step by drafts, and settles afterwards what they were worth."""

    def __init__(self, drafter: Drafter, most: int) -> None:
        self._drafter = drafter
        self.most = most  # drafts of a row

    def drafted(self, rows: Rows, room: Seq[int]) -> Rows:
        """Returns the plan of a step with drafts in its decodes, up to `room` (R,)."""
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
            count = num_right(sequence.request, sequence.drafts, choices[first : first + num + 1])
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


def _settled(rows: Rows) -> Rows:
    query_lens = [
        query_len - len(sequence.drafts) + sequence.num_accepted
        for sequence, query_len in zip(rows.sequences, rows.query_lens, strict=True)
    ]
    return replace(rows, query_lens=query_lens)
