"""What a client of the engine calls, and what a step does: schedule, run, update."""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from batchproof.api import (
    Capability,
    Completion,
    EngineConfig,
    FinishReason,
    Limits,
    Request,
    RowRecord,
    StepRecord,
    TokenEvent,
    duplicate_id,
)
from batchproof.errors import ConfigError
from batchproof_engines.grammars import Grammars
from batchproof_engines.lora import Adapters, refusal_of
from batchproof_engines.model_support import sliding_window
from batchproof_engines.pausing import Pausable
from batchproof_engines.sampler import SampledRow, Sampler, completed
from batchproof_engines.weights import Weights
from batchproof_paged.attention import Backend
from batchproof_paged.batch import RaggedBatch
from batchproof_paged.block_manager import OFFLOADED, RESTORED
from batchproof_paged.blocks import BlockPool
from batchproof_paged.cached_runner import CachedRunner
from batchproof_paged.graphs import REPLAYED
from batchproof_paged.masking import visible_to
from batchproof_paged.moving import BlockMover
from batchproof_paged.options import NO_AUTOCAST, PACKED, PagedOptions
from batchproof_paged.rows import Columns, Rows, TraceLog
from batchproof_paged.runner import Flight, ModelRunner
from batchproof_paged.scheduler import Scheduler, SchedulerOutput
from batchproof_paged.sequence import PENDING, Sequence
from batchproof_paged.speculation import Drafter, ModelDrafter, NgramDrafter, Speculator
from batchproof_paged.staging import current

# Events, and the logits (vocab,) of each, if they are wanted.
Landed = tuple[list[TokenEvent], list[Tensor]]
MakeBackend = Callable[[int, int | None], Backend]  # (num_lanes, num_blocks)

# `TokenEvent._make` without a call of Python for each row, which takes as long as all else of it.
_event: Callable[[tuple[object, ...]], TokenEvent] = partial(tuple.__new__, TokenEvent)


class Launched(NamedTuple):
    """A step given to the device."""

    planned: Rows  # with their drafts
    rows: Rows  # in the order of the batch, without rejected drafts
    flight: Flight
    last: list[int] | None  # (S,) place in the flight of each sampled row's last token; None: each


class PagedEngine(Pausable):
    """Its package's docstring follows a request through it. `options` are resolved."""

    asked: ClassVar[dict[str, object]] = {}  # options of a subclass: `built_as`

    def __init__(
        self,
        model: PreTrainedModel,
        config: EngineConfig,
        make_backend: MakeBackend,
        options: PagedOptions,
    ) -> None:
        self.capabilities = options.capabilities
        self.invariance = options.invariance
        self.notes: tuple[str, ...] = ()  # what a verdict should say of the engine besides
        self._sampler = Sampler()
        self._grammars = Grammars(Limits.of(model, config).vocab_size)
        self._config = config
        self._window = sliding_window(model)
        self._device = model.device
        self._make_backend = make_backend
        self._backend = make_backend(config.max_num_seqs, config.num_blocks)
        self._options = options
        self._movers: list[BlockMover] = []  # one for each pool
        self._num_moved = dict.fromkeys((OFFLOADED, RESTORED) if options.offload else (), 0)
        self._keep_evicted(self._backend)
        self._adapters: Adapters | None = None  # from the first one on
        self._weights: Weights | None = None  # from the first update on
        self._model, self._limits = model, Limits.of(model, config)
        self._runner = self._runner_of(model, options)
        has_lanes = options.backend == "lanes"
        self._scheduler = self._scheduler_of(self._limits, config, has_lanes, options.offload)
        self._overlaps = bool(options.overlap)
        self._speculator: Speculator | None = None
        if config.num_speculative_tokens and Capability.SPECULATION in self.capabilities:
            drafter = self._drafter(config.draft_model(model), options)
            self._speculator = Speculator(drafter, config.num_speculative_tokens)
        self._in_flight: Flight | None = None  # its tokens have not been read
        self._undelivered: list[TokenEvent] = []  # of requests that ended outside a step
        self._trace = TraceLog()
        if options.prepare:
            self._runner.prepare(self._limits.max_model_len)

    def _scheduler_of(self, *given: Any) -> Scheduler:
        return Scheduler(*given)

    def _runner_of(self, model: PreTrainedModel, options: PagedOptions) -> ModelRunner | CachedRunner:
        runner_class = ModelRunner if options.feed == PACKED else CachedRunner
        return runner_class(model, self._backend, self._config, options)

    def _rebase(self, model: PreTrainedModel) -> None:
        self._model = model
        if self._adapters is not None:
            self._adapters.rebase(model)
            self._runner = self._runner_of(self._adapters.model, self._options.eager())
            return
        self._runner = self._runner_of(model, self._options)
        if self._options.prepare:
            self._runner.prepare(self._limits.max_model_len)

    def _drafter(self, draft: PreTrainedModel | None, options: PagedOptions) -> Drafter:
        if draft is None:
            return NgramDrafter()
        config = self._config
        backend = self._make_backend(config.max_num_seqs, config.num_blocks)
        self._keep_evicted(backend)
        return ModelDrafter(ModelRunner(draft, backend, replace(config, return_logits=False), options))

    def _keep_evicted(self, backend: Backend) -> None:
        if self._options.offload:
            assert isinstance(backend, BlockPool), "the options exclude it"
            self._movers.append(BlockMover(backend, self._options.offload))

    # ---- what a client calls ---------------------------------------------------------------------

    @property
    def scheduling_delay(self) -> int:
        """Steps between the EOS of a sequence and the one that knows of it."""
        return int(self._overlaps)

    @property
    def trace(self) -> Seq[StepRecord]:
        return self._trace

    @property
    def counters(self) -> dict[str, int]:
        graphs = getattr(self._runner, "graphs", None)
        return self._num_moved | ({REPLAYED: graphs.num_replayed} if graphs else {})

    @property
    def has_unfinished(self) -> bool:
        return bool(self._scheduler.has_unfinished or self._undelivered or self._in_flight is not None)

    def step(self) -> list[TokenEvent]:
        events = self._step()[0]
        undelivered, self._undelivered = self._undelivered, []
        return undelivered + events

    def add(self, request: Request) -> None:
        if self._is_live(request.request_id):
            raise ValueError(duplicate_id(request.request_id))
        # Drop a pending ABORTED event of an earlier request with this id: the client would take it for
        # the new one's.
        self._undelivered = [e for e in self._undelivered if e.request_id != request.request_id]
        refusal = self._refusal(request)
        if refusal is None:
            self._enqueue(request)
        else:
            self._undelivered.append(TokenEvent.refused(request.request_id, refusal))

    def abort(self, request_id: str) -> None:
        was_live = self._scheduler.abort(request_id)
        for event in self._undelivered.copy():  # done, but delivered by the next step
            if event.request_id == request_id and event.token_id is not None:
                self._undelivered.remove(event)
                was_live = True
        for sequence in self._flying(request_id):  # done, but its last token has not been delivered
            sequence.finish_reason = FinishReason.ABORTED
            was_live = True
        if was_live:
            self._undelivered.append(TokenEvent(request_id, None, FinishReason.ABORTED))

    def generate(self, requests: Seq[Request]) -> list[Completion]:
        if self.has_unfinished:
            raise RuntimeError("generate was called while requests given by add are unfinished")
        answers: list[Sequence | str] = []  # a sequence, or why it was refused
        try:
            for request in requests:
                answers.append(self._refusal(request) or self._enqueue(request))
            logits = self._run_all()
        except BaseException:  # the next call must not meet what is left of this one
            for sequence in self._scheduler.queued:
                self._scheduler.abort(sequence.request_id)
            self._in_flight = None
            raise
        return [
            Completion.refused(request.request_id, answer)
            if isinstance(answer, str)
            else completed(answer, answer.output_token_ids, logits.get(answer.request_id, ()))
            for request, answer in zip(requests, answers, strict=True)
        ]

    def load_adapter(self, name: str, path: str) -> None:
        """From the first adapter on the model runs eagerly: what is traced or captured is the same in
        every step. Raises `ConfigError` for an engine whose options exclude adapters."""
        if Capability.ADAPTERS not in self.capabilities:
            raise ConfigError("engine 'paged': adapters need feed=packed and batch_invariant=false")
        if self._adapters is None:
            self._adapters = Adapters(self._model)
            self._runner = self._runner_of(self._adapters.model, self._options.eager())
        self._adapters.load(name, path)

    def unload_adapter(self, name: str) -> None:
        if self._adapters is not None:
            self._adapters.unload(name)

    def sleep(self) -> None:
        self._restart()
        self._is_asleep = True

    def clear_cache(self) -> None:
        """Requests in flight keep their keys."""
        self._scheduler.blocks.forget(self._scheduler.running)

    def update_weights(self, model: PreTrainedModel, names: Seq[str] | None = None) -> None:
        """The first update copies the model, whose parameters the engine shares until then. Later ones
        change them in place, which traces, captured steps and packed copies follow."""
        self._restart()
        if self._weights is None:
            self._weights = Weights(self._model)
            self._rebase(self._weights.model)
        self._weights.update(model, names)

    def _restart(self) -> None:
        """Takes all requests out of their slots and forgets what is cached. What is in flight was
        chosen before, and is delivered by the next step."""
        self._undelivered += self._land()[0]
        self._scheduler.preempt_all()
        self._scheduler.blocks.forget()

    def attention_mask(self, rows: Seq[RowRecord]) -> Tensor:
        with current(self._device):
            return visible_to(
                self._make_backend, rows, self._config.block_size, self._window, self._device
            )

    def _refusal(self, request: Request) -> str | None:
        if self._overlaps and request.sampling is not None:
            return f"sampling is {request.sampling}, but needs the option overlap=false"
        if self._overlaps and request.grammar is not None:
            return f"grammar is {request.grammar}, but needs the option overlap=false"
        refusal = refusal_of(request.adapter, self._adapters) or self._scheduler.refusal(request)
        return refusal or self._grammars.refusal(request)

    def _enqueue(self, request: Request) -> Sequence:
        root = 0 if self._adapters is None else -self._adapters.root(request.adapter)
        sequence = self._scheduler.add(request, root)
        sequence.matcher = self._grammars.matcher(request)
        return sequence

    def _is_live(self, request_id: str) -> bool:
        """From the caller's side: a request is live until its last token or refusal is delivered."""
        is_pending = any(
            event.request_id == request_id and event.finish_reason is not FinishReason.ABORTED
            for event in self._undelivered
        )
        return is_pending or self._scheduler.is_live(request_id) or bool(self._flying(request_id))

    def _flying(self, request_id: str) -> list[Sequence]:
        """The sequence of that id whose token is in flight; at most one."""
        rows = self._in_flight.sampled if self._in_flight is not None else Rows.of(())
        pairs = zip(rows.sequences, rows.seq_lens, strict=True)
        return [each for each, end in pairs if each.request_id == request_id and each.awaits(end)]

    def _run_all(self) -> dict[str, list[Tensor]]:
        """Steps until all is finished. Returns the logits, if any, of each request's tokens."""
        logits: dict[str, list[Tensor]] = {}
        while self.has_unfinished:
            events, of_step = self._step()
            for event, row in zip(events, of_step, strict=False):
                logits.setdefault(event.request_id, []).append(row)
        return logits

    # ---- a step ----------------------------------------------------------------------------------

    def _step(self) -> Landed:
        """Returns the tokens read in this step: its own, or those of the step before. Raises
        `ConfigError` inside `torch.autocast`."""
        if torch.is_autocast_enabled(self._device.type):
            raise ConfigError(NO_AUTOCAST)
        if not self.is_serving:
            return self._land()
        return self._carry_out(self._scheduler.schedule())

    def _carry_out(self, plan: SchedulerOutput) -> Landed:
        if not plan.scheduled:
            return self._land()
        return self._update(plan, self._run(plan))

    def _run(self, plan: SchedulerOutput) -> Launched:
        """Feeds the plan's rows, with drafts if the engine speculates, and chooses their tokens."""
        if len(plan.admitted) == len(plan.scheduled):
            self._runner.begin_run()
        planned, last = plan.scheduled, None
        try:
            if self._speculator is not None:
                room = self._scheduler.room_for_drafts(planned, self._speculator.most)
                self._move_blocks()
                planned = self._speculator.drafted(planned, room)
            self._move_blocks()
            batch = RaggedBatch.of(planned)
            if self._adapters is not None:
                rows = batch.scheduled
                names = [sequence.request.adapter for sequence in rows.sequences]
                self._adapters.begin(zip(names, rows.query_lens, strict=True))
            flight, rows = self._runner.launch(batch), batch.scheduled
            if flight.scored is not None:
                self._score_prompts(batch, flight.scored)
            flight = self._before_drafts(flight)
            if self._speculator is not None:
                flight, rows, last = self._speculator.verified(batch, flight)
            return Launched(planned, rows, self._sampled(flight), last)
        except BaseException:
            if isinstance(self._runner, CachedRunner):  # a state is changed in place
                self._scheduler.preempt_all()
            raise

    def _move_blocks(self) -> None:
        """Does what the plan has decided of blocks, before the step writes to any."""
        moves = self._scheduler.blocks.moves
        if moves:
            for mover in self._movers:
                mover.carry_out(moves)
            for each in moves:
                self._num_moved[each.kind] += 1
            moves.clear()

    def _update(self, plan: SchedulerOutput, launched: Launched) -> Landed:
        """Records what the step has done, and reads tokens: those of the step before, while the device
        is busy with this one, or this one's."""
        planned, rows, flight, last = launched
        landed = self._land()
        token_ids = [PENDING] * len(flight.sampled) if self._overlaps else flight.land()
        if last is not None:
            token_ids = [token_ids[place] for place in last]
        done = self._scheduler.update(rows, token_ids)
        self._record(plan, planned, done)
        if not done or any(map(Sequence.awaits, flight.sampled.sequences, flight.sampled.seq_lens)):
            self._in_flight = flight
        return landed if self._overlaps else self._land()

    def _score_prompts(self, batch: RaggedBatch, scored: Tensor) -> None:
        """Notes the logprobs of prompt tokens that the logits `scored` (P, vocab) predict."""
        rows = batch.scheduled.picked(batch.scored_rows)
        for row, logits in zip(rows, scored.split(rows.query_lens), strict=True):
            known, request = row.sequence.prompt_logprobs, row.sequence.request
            self._sampler.score_prompt(known, request, row.context_len, logits)

    def _before_drafts(self, flight: Flight) -> Flight:
        """Chooses again where a request has a grammar alone, or drafts and parameters, before each of
        its drafts and behind the last: behind one that a grammar does not allow it allows nothing."""
        chosen: dict[int, SampledRow] = {}  # by its place in the flight
        place = 0
        for sequence in flight.sampled.sequences:
            drafts, is_asking = sequence.drafts, sequence.request.sampling is not None
            if drafts if is_asking else sequence.matcher:
                tokens = sequence.output_token_ids + drafts
                ends = range(len(tokens) - len(drafts), len(tokens) + 1)
                chosen |= {
                    place + num: SampledRow(sequence.request, tokens[:end], sequence.matcher)
                    for num, end in enumerate(ends)
                }
            place += len(drafts) + 1
        return self._choose(flight, chosen)

    def _sampled(self, flight: Flight) -> Flight:
        """Chooses again where a request without drafts says how, and notes its logprobs."""
        pairs = list(enumerate(flight.sampled.sequences))
        asking = {i: each for i, each in pairs if each.request.sampling and not each.drafts}
        rows = {
            place: SampledRow(each.request, each.output_token_ids, each.matcher)
            for place, each in asking.items()
        }
        return self._choose(flight, rows)

    def _choose(self, flight: Flight, rows: dict[int, SampledRow]) -> Flight:
        """Chooses the tokens at these places of the flight again, and notes their logprobs."""
        if not rows:
            return flight
        assert flight.logits is not None, "an engine that reads its tokens late refuses such requests"
        token_ids = flight.land()
        choices = self._sampler.choose(flight.logits[list(rows)], list(rows.values()))
        for place, choice in zip(rows, choices, strict=True):
            token_ids[place] = choice.token_id
            if choice.logprobs is not None:
                flight.sampled.sequences[place].logprobs.append(choice.logprobs)
        return replace(flight, land=lambda: token_ids)

    def _land(self) -> Landed:
        """Reads the tokens in flight and puts them in the place of those that stand for them."""
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
