"""One step after another: policy and tensors put together, a step on one screen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

from batchproof.api import Capability, EngineConfig, Limits, TokenEvent
from batchproof.errors import ConfigError
from batchproof_engines.model_support import sliding_window
from batchproof_engines.sampler import SampledRow, Sampler
from batchproof_paged.attention import Backend
from batchproof_paged.batch import RaggedBatch
from batchproof_paged.cached_runner import CachedRunner
from batchproof_paged.capabilities import INVARIANCE, capabilities
from batchproof_paged.drafting import Drafter, ModelDrafter, NgramDrafter
from batchproof_paged.options import NO_AUTOCAST, PACKED, PagedOptions
from batchproof_paged.rows import Rows
from batchproof_paged.runner import Flight, ModelRunner
from batchproof_paged.scheduler import Scheduler, SchedulerOutput
from batchproof_paged.sequence import PENDING, Sequence
from batchproof_paged.speculation import Speculator
from batchproof_paged.staging import current
from batchproof_paged.trace import Columns, TraceLog

# Events, and the logits (vocab,) of each, if they are wanted.
Landed = tuple[list[TokenEvent], list[Tensor]]
MakeBackend = Callable[[int, int | None], Backend]  # (num_lanes, num_blocks)

# `TokenEvent._make` without a call of Python for each row, which takes as long as all else of it.
_event: Callable[[tuple[object, ...]], TokenEvent] = partial(tuple.__new__, TokenEvent)


class Stepper:
    """Schedules, feeds, chooses and books, step after step. `options` are resolved."""

    scheduler_class = Scheduler
    sampler_class = Sampler
    runner_class = ModelRunner
    cached_runner_class = CachedRunner
    speculator_class = Speculator

    def __init__(
        self,
        model: PreTrainedModel,
        config: EngineConfig,
        make_backend: MakeBackend,
        options: PagedOptions,
    ) -> None:
        self.capabilities = capabilities(options)
        self.invariance = INVARIANCE if options.batch_invariant else {}
        self._sampler = self.sampler_class()
        self._config = config
        self._window = sliding_window(model)
        self._device = model.device
        self._make_backend = make_backend
        self._backend = make_backend(config.max_num_seqs, config.num_blocks)
        runner_class = self.runner_class if options.feed == PACKED else self.cached_runner_class
        self._runner = runner_class(model, self._backend, config, options)
        limits, has_lanes = Limits.of(model, config), options.backend == "lanes"
        self._scheduler = self.scheduler_class(limits, config, has_lanes, self._runner.num_resumable)
        self.notes: tuple[str, ...] = ()  # what a verdict should say of the engine besides
        self._overlaps = bool(options.overlap)
        self._speculator: Speculator | None = None
        if config.num_speculative_tokens and Capability.SPECULATION in self.capabilities:
            drafter = self._drafter(config.draft_model(model), options)
            self._speculator = self.speculator_class(drafter, config.num_speculative_tokens)
        self._poison = options.poison
        self._batch: RaggedBatch | None = None  # of the last step
        self._in_flight: Flight | None = None  # its tokens have not been read
        self._undelivered: list[TokenEvent] = []  # of requests that ended outside a step
        self._trace = TraceLog()
        if options.prepare:
            self._runner.prepare(limits.max_model_len)

    def _drafter(self, draft: PreTrainedModel | None, options: PagedOptions) -> Drafter:
        if draft is None:
            return NgramDrafter()
        config = self._config
        backend = self._make_backend(config.max_num_seqs, config.num_blocks)
        return ModelDrafter(ModelRunner(draft, backend, replace(config, return_logits=False), options))

    def _run_step(self) -> Landed:
        """One iteration. Returns the tokens read in it: its own, or those of the step before. Raises
        `ConfigError` inside `torch.autocast`."""
        if torch.is_autocast_enabled(self._device.type):
            raise ConfigError(NO_AUTOCAST)
        plan = self._scheduler.schedule()
        if not plan.scheduled:
            return self._land()
        if self._poison is not None:
            with current(self._device):
                self._backend.poison(plan.freed_blocks, self._poison)
        if len(plan.admitted) == len(plan.scheduled):
            self._runner.begin_run()
        last: list[int] | None = None  # places of the rows' last tokens, if a row may have several
        try:
            planned = plan.scheduled
            if self._speculator is not None:
                planned = self._speculator.drafted(planned, self._scheduler)
            self._batch = batch = RaggedBatch.of(planned, self._batch)
            flight, rows = self._runner.launch(batch), batch.scheduled
            self._score_prompts(batch, flight)
            if self._speculator is not None:
                flight, rows, last = self._speculator.verified(batch, flight)
            flight = self._sampled(flight)
        except BaseException:
            if isinstance(self._runner, CachedRunner):  # a state is changed in place
                self._scheduler.preempt_all()
            raise
        landed = self._land()  # of the step before, while the device is busy with this one
        token_ids = [PENDING] * len(flight.sampled) if self._overlaps else flight.land()
        if last is not None:
            token_ids = [token_ids[place] for place in last]
        done = self._scheduler.update(rows, token_ids)
        self._record(plan, planned, done)
        if not done or any(map(Sequence.awaits, flight.sampled.sequences, flight.sampled.seq_lens)):
            self._in_flight = flight
        return landed if self._overlaps else self._land()

    def _score_prompts(self, batch: RaggedBatch, flight: Flight) -> None:
        """Notes the logprobs of prompt tokens behind those fed."""
        if flight.scored is None:
            return
        rows = batch.scheduled.picked(batch.scored_rows)
        for row, logits in zip(rows, flight.scored.split(rows.query_lens), strict=True):
            sequence, context_len = row.sequence, row.context_len
            known, request = sequence.prompt_logprobs, sequence.request
            self._sampler.score_prompt(known, request, context_len, logits)

    def _sampled(self, flight: Flight) -> Flight:
        """Chooses anew where a request says how, and notes its logprobs."""
        sequences = flight.sampled.sequences
        if not any(sequence.request.sampling for sequence in sequences):
            return flight
        assert flight.logits is not None, "an engine that reads its tokens late refuses such requests"
        rows = [SampledRow(each.request, each.output_token_ids) for each in sequences]
        choices = self._sampler.choose(flight.logits, rows)
        for sequence, choice in zip(sequences, choices, strict=True):
            if choice.logprobs is not None:
                sequence.logprobs.append(choice.logprobs)
        token_ids = [choice.token_id for choice in choices]
        return replace(flight, land=lambda: token_ids)

    def _land(self) -> Landed:
        """Read the tokens in flight and put them in the place of those that stand for them."""
        flight, self._in_flight = self._in_flight, None
        if flight is None:
            return [], []
        events: list[TokenEvent] = []
        logits: list[Tensor] = []
        rows = flight.sampled
        places = zip(rows.sequences, rows.seq_lens, flight.land(), strict=True)
        for place, (sequence, index, token_id) in enumerate(places):
            if not sequence.awaits(index):
                continue
            was_running = sequence.finish_reason is None
            if sequence.reveal(index, token_id) and was_running:
                self._scheduler.stop(sequence)
            logprobs = sequence.logprobs[-1] if sequence.logprobs else None
            name = sequence.request.request_id
            reason = sequence.finish_reason if index == sequence.num_tokens - 1 else None
            events.append(_event((name, token_id, reason, None, logprobs)))
            if flight.logits is not None and self._config.return_logits:
                logits.append(flight.logits[place].float())
        return events, logits

    def _record(self, plan: SchedulerOutput, rows: Rows, done: list[Sequence]) -> None:
        names = [sequence.request.request_id for sequence in rows.sequences]
        columns: Columns = (names, rows.context_lens, rows.query_lens, rows.are_sampled)
        if self._speculator is not None:
            drafted = [len(sequence.drafts) for sequence in rows.sequences]
            columns += (drafted, [sequence.num_accepted for sequence in rows.sequences])
        self._trace.append(
            columns,
            self._scheduler.waiting_ids,
            plan.admitted,
            tuple(sequence.request_id for sequence in done),
            plan.preempted,
            self._scheduler.blocks.num_free_blocks,
            self._config.num_blocks,
        )
