"""Drafts that are taken for right, or right ones that end up elsewhere."""

from __future__ import annotations

from dataclasses import replace

from transformers import PreTrainedModel

from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_paged.batch import RaggedBatch
from batchproof_paged.drafting import Drafter, ModelDrafter, NgramDrafter
from batchproof_paged.engine import PagedEngine
from batchproof_paged.options import PagedOptions
from batchproof_paged.rows import Rows
from batchproof_paged.runner import Flight, ModelRunner
from batchproof_paged.scheduler import Scheduler
from batchproof_paged.sequence import Sequence
from batchproof_paged.speculation import Speculator, Verified


@planted(Promise.P17, Cause.SPECULATION, "jaymody/speculative-sampling#3")
class NearlyRightDraftsAreAccepted(Speculator):
    """The first draft of a row is accepted whatever the model would have chosen."""

    def num_right(self, sequence: Sequence, choices: list[int]) -> int:
        if sequence.drafts and choices[0] not in sequence.request.eos_token_ids:
            return max(2, super().num_right(sequence, choices))
        return super().num_right(sequence, choices)


@planted(Promise.P17, Cause.SPECULATION, "paiml/aprender#2014")
class RightDraftsAreCountedBehindAWrongOne(Speculator):
    """As many tokens stay as drafts are right, also those behind a wrong one."""

    def num_right(self, sequence: Sequence, choices: list[int]) -> int:
        pairs = zip(sequence.drafts, choices, strict=False)
        return 1 + sum(draft == choice for draft, choice in pairs)


@planted(Promise.P17, Cause.SPECULATION, "ml-explore/mlx-examples#149")
class OneDraftTooManyStays(Speculator):
    """A run of right drafts takes the wrong one behind it along."""

    def num_right(self, sequence: Sequence, choices: list[int]) -> int:
        num = super().num_right(sequence, choices)
        is_over = choices[num - 1] in sequence.request.eos_token_ids
        return num if num == 1 or is_over else min(num + 1, len(choices))


@planted(Promise.P17, Cause.SPECULATION, "huggingface/transformers#47912")
class AnEosAmongDraftsIsMissed(Speculator):
    """Only the last token of a step is compared with the EOS ids."""

    def num_right(self, sequence: Sequence, choices: list[int]) -> int:
        num = 1
        while num < len(choices) and sequence.drafts[num - 1] == choices[num - 1]:
            num += 1
        if sequence.request.eos_token_ids & {*choices[: num - 1]}:  # nobody looks there again
            sequence.request = replace(sequence.request, eos_token_ids=frozenset())
        return num


@planted(Promise.P17, Cause.STREAM, "vllm-project/vllm#26027")
class OnlyTheLastTokenOfAStepIsStreamed(PagedEngine):
    """Of several tokens of a step, `step` tells the last one alone."""

    def step(self) -> list:  # type: ignore[type-arg]
        return list({event.request_id: event for event in super().step()}.values())


@planted(Promise.P17, Cause.SPECULATION, "sgl-project/sglang#31599")
class TheCapIsCheckedAfterTheStep(Scheduler):
    """A step of right drafts runs beyond the cap."""

    def room_for_drafts(self, rows: Rows, most: int) -> list[int]:
        for sequence in rows.sequences:
            sequence.max_num_tokens += most
        room = super().room_for_drafts(rows, most)
        for sequence in rows.sequences:
            sequence.max_num_tokens -= most
        return room

    def update(self, scheduled: Rows, token_ids: list[int]) -> list[Sequence]:  # type: ignore[override]
        for sequence in scheduled.sequences:
            sequence.max_num_tokens = max(sequence.max_num_tokens, sequence.num_tokens + 1)
        return super().update(scheduled, token_ids)


@planted(Promise.P17, Cause.SPECULATION, "tenstorrent/vllm-tt-plugin#131")
class AllRowsAcceptAsManyAsTheFirst(Speculator):
    """The number of accepted drafts of the first row counts for the whole batch."""

    def verified(self, batch: RaggedBatch, flight: Flight) -> Verified:
        self._of_first: int | None = None
        return super().verified(batch, flight)

    def num_right(self, sequence: Sequence, choices: list[int]) -> int:
        num = super().num_right(sequence, choices)
        if not sequence.drafts or choices[num - 1] in sequence.request.eos_token_ids:
            return num
        if self._of_first is None:
            self._of_first = num
        return min(self._of_first, len(choices))


@planted(Promise.P17, Cause.SPECULATION, "tenstorrent/vllm-tt-plugin#127")
class RowsWithFewerDraftsAreReadAsFull(Speculator):
    """Choices are read as if every row had as many drafts as the first that has some."""

    def verified(self, batch: RaggedBatch, flight: Flight) -> Verified:
        counts = [len(sequence.drafts) for sequence in flight.sampled.sequences]
        width = next((each for each in counts if each), 0)
        choices, read, first = flight.land(), list[int](), 0
        for count in counts:
            read += (choices + choices)[first : first + count + 1]
            first += width + 1 if count else 1
            first %= len(choices)
        return super().verified(batch, replace(flight, land=lambda: read))


@planted(Promise.P17, Cause.SPECULATION, "vllm-project/vllm#16370")
class DraftsHaveNoBlockOfTheirOwn(Scheduler):
    """Where the last block is full, the keys of drafts go to its beginning."""

    def room_for_drafts(self, rows: Rows, most: int) -> list[int]:
        held = [len(sequence.block_table) for sequence in rows.sequences]
        room = super().room_for_drafts(rows, most)
        self._tables = {}
        for sequence, num in zip(rows.sequences, held, strict=True):
            self._tables[sequence.request_id] = table = sequence.block_table.copy()
            sequence.block_table[num:] = [table[num - 1]] * (len(table) - num)
        return room

    def update(self, scheduled: Rows, token_ids: list[int]) -> list[Sequence]:  # type: ignore[override]
        for sequence in scheduled.sequences:
            sequence.block_table = self._tables.get(sequence.request_id, sequence.block_table)
        return super().update(scheduled, token_ids)


@planted(Promise.P17, Cause.SPECULATION, "tenstorrent/vllm-tt-plugin#131")
class APreemptedRequestKeepsItsDrafts(Scheduler):
    """A request that is preempted takes its rejected drafts along as tokens."""

    def _preempt_youngest(self) -> str:
        victim = self.running[-1]
        room = victim.max_num_tokens - victim.num_tokens - 1
        victim.token_ids += victim.drafts[victim.num_accepted :][: max(room, 0)]
        victim.drafts = []
        return super()._preempt_youngest()


class _DraftingAfterwards(Speculator):
    """Feeds the draft model again what a step has settled."""

    def verified(self, batch: RaggedBatch, flight: Flight) -> Verified:
        done = super().verified(batch, flight)
        self._drafter.propose(done.rows, [0] * len(done.rows))
        return done


@planted(Promise.P17, Cause.SPECULATION, "vllm-project/vllm#42971")
class TheDraftWritesIntoTheModelsCache(PagedEngine):
    """The draft model's keys take the place of the model's own, in the same blocks."""

    speculator_class = _DraftingAfterwards

    def _drafter(self, draft: PreTrainedModel | None, options: PagedOptions) -> Drafter:
        if draft is None:
            return NgramDrafter()
        config = replace(self._config, return_logits=False)
        return ModelDrafter(ModelRunner(draft, self._backend, config, options))


@planted(Promise.P17, Cause.SCHEDULING, "m87-labs/kestrel#114")
class DraftsAreNotCountedInTheBudget(Scheduler):
    """A step feeds as many drafts as it likes, beyond `max_num_batched_tokens`."""

    def room_for_drafts(self, rows: Rows, most: int) -> list[int]:
        config = self._config
        self._config = replace(config, max_num_batched_tokens=1 << 20)
        room = super().room_for_drafts(rows, most)
        self._config = config
        return room


@planted(Promise.P17, Cause.SPECULATION, "snowflakedb/ArcticInference#161")
class DraftedRequestsLoseTheirParameters(Scheduler):
    """Requests with parameters of their own are drafted as well, and verified without them."""

    def room_for_drafts(self, rows: Rows, most: int) -> list[int]:
        requests = [sequence.request for sequence in rows.sequences]
        for sequence in rows.sequences:
            sequence.request = replace(sequence.request, sampling=None)
        room = super().room_for_drafts(rows, most)
        for sequence, request in zip(rows.sequences, requests, strict=True):
            sequence.request = request
        return room


@planted(Promise.P17, Cause.SPECULATION, "sgl-project/sglang#26163")
class LogitsOfRejectedDraftsAreReturned(Speculator):
    """The returned logits are the first of the step, those of rejected drafts among them."""

    def verified(self, batch: RaggedBatch, flight: Flight) -> Verified:
        done = super().verified(batch, flight)
        if flight.logits is None:
            return done
        logits = flight.logits[: len(done.flight.sampled)]
        return done._replace(flight=replace(done.flight, logits=logits))


@planted(Promise.P17, Cause.SPECULATION, "vllm-project/vllm-ascend#2280", shows_on="llama-hash")
class DraftsFromNgramsAreTrusted(Speculator):
    """What n-grams find is kept whatever the model would have chosen; a draft model's is verified."""

    def num_right(self, sequence: Sequence, choices: list[int]) -> int:
        if isinstance(self._drafter, NgramDrafter):
            return len(choices)
        return super().num_right(sequence, choices)
