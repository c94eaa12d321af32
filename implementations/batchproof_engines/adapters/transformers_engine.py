"""An engine around a manager of transformers; see `transformers_cb.py`."""

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from itertools import count
from math import ceil
from time import sleep

import torch
from transformers import ContinuousBatchingManager, PreTrainedModel

from batchproof.api import (
    Capability,
    Completion,
    EngineConfig,
    FinishReason,
    Limits,
    Request,
    TokenEvent,
    duplicate_id,
)
from batchproof_engines.adapters.transformers_manager import (
    NAME,
    Tuning,
    attending,
    in_words,
    is_idle,
    manager_for,
    next_output,
    paused,
    stop,
)
from batchproof_engines.completions import completion_of, with_refused

WAIT_S = 0.001  # between two looks at whether aborted requests have left the model
SAFETY_MARGIN = 0.15  # of the pool: if less is free, the library delays prompts


@dataclass(frozen=True)
class PoolLimits(Limits):
    """The limits of a model and, where the configuration gives its size, of the pool.

    Without `is_guarded` bad requests are left for the library to refuse. A duplicate id is still
    refused, because the library never sees the user's ids, and so is a field that it has no word for.
    """

    config: EngineConfig
    tuning: Tuning

    def refusal(self, request: Request) -> str | None:
        asked = request.sampling
        beyond = None if asked is None else asked.beyond(frozenset())
        if beyond or not self.tuning.is_guarded:
            return beyond
        refusal, num_blocks = super().refusal(request), self.config.num_blocks
        if refusal or num_blocks is None:
            return refusal
        needed = ceil(num_fed_tokens(request) / self.config.block_size)
        is_held = needed <= num_blocks
        return (
            None if is_held else f"it needs {needed} blocks of KV cache, but the pool has {num_blocks}"
        )


@dataclass(frozen=True, slots=True)
class _Pool:
    """A running manager with the sizes it was made for."""

    manager: ContinuousBatchingManager
    num_asked: int  # requested pages per layer
    num_pages: int  # actual pages per layer: fewer if the memory did not suffice
    longest: int  # the most tokens of a sequence
    num_threads: int  # of torch, when the manager's thread started: it keeps that number

    def is_for(self, num_asked: int, least: int, longest: int) -> bool:
        is_large = num_asked <= self.num_asked and least <= self.num_pages
        return is_large and longest <= self.longest and torch.get_num_threads() == self.num_threads


@dataclass
class _Stream:
    """A live request: its name in the library, and how many of its tokens have been delivered."""

    name: str
    request: Request
    num_delivered: int = 0


class TransformersEngine:
    """An engine around a manager. With `tuning.can_step` requests arrive and leave while others run, as
    in a server.

    The library's thread steps by itself. A `step` of this engine is what a client sees: it waits for
    the next tokens and takes all there are. Every token then costs the library an object with all
    tokens so far, so throughput is measured without stepping. One pool is for everything that may come:
    `max_num_seqs` sequences of the greatest length.
    """

    release = f"transformers continuous batching {version('transformers')}"

    def __init__(self, model: PreTrainedModel, config: EngineConfig, tuning: Tuning) -> None:
        self._model = model
        self._config = config
        self._tuning = tuning
        own = Limits.of(model, config)
        self._limits = PoolLimits(own.vocab_size, own.max_model_len, config, tuning)
        self._names = (f"{NAME}-{number}" for number in count())  # a user's ids may be used again
        self._pool: _Pool | None = None
        self._release: Callable[[], object] = lambda: None
        self._streams: dict[str, _Stream] = {}  # by the user's id
        self._undelivered: list[TokenEvent] = []  # of requests that ended outside a step
        self._attending = ExitStack()
        self.capabilities = frozenset(
            {Capability.CLOSING, Capability.STEPPING} if tuning.can_step else {Capability.CLOSING}
        )
        if tuning.can_step or config.num_blocks is not None or config.max_model_len is not None:
            self._require_largest_pool()

    @property
    def notes(self) -> tuple[str, ...]:
        guard = (
            "Bad requests are refused by the adapter, for one of them would end the library's thread; "
            "it also undoes that the library seeds torch's generators when it makes a manager"
            if self._tuning.is_guarded
            else "Bad requests are given to the library as they are, and what it seeds stays seeded"
        )
        mode = in_words(self._pool.manager if self._pool else None, self._tuning.attention)
        return (
            f"{mode}; keys and values are kept in the dtype of the model.",
            "An EOS is in the output; caps and EOS ids are per request. The library gives no finish "
            "reason: it is derived from the last token.",
            f"{guard}; an id that is live is refused by the adapter, which names requests itself.",
        )

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Returns one completion per request. Raises `RuntimeError` if the library fails or its
        thread ends, and while requests given by `add` are unfinished."""
        if self.has_unfinished:
            raise RuntimeError("generate was called while requests given by add are unfinished")
        refusals = self._limits.refusals(requests)
        return with_refused(
            requests, refusals, lambda good: map(completion_of, self._served(good)) if good else ()
        )

    @property
    def has_unfinished(self) -> bool:
        return bool(self._streams or self._undelivered)

    def add(self, request: Request) -> None:
        if request.request_id in self._streams:
            raise ValueError(duplicate_id(request.request_id))
        refusal = self._limits.refusal(request)
        if refusal is not None:
            self._undelivered.append(TokenEvent.refused(request.request_id, refusal))
            return
        with self._closing_on_error():
            manager = self._require_largest_pool()
            if not self._streams:
                self._attending.enter_context(attending(self._model, self._tuning.attention))
            self._submit(manager, [request], streaming=True)

    def step(self) -> list[TokenEvent]:
        """Returns the events of all outputs so far; waits for one if there is nothing else to deliver.
        Raises `RuntimeError` as `generate` does."""
        events, self._undelivered = self._undelivered, []
        with self._closing_on_error():
            while self._streams and (new := self._next_events(waits=not events)) is not None:
                events += new
            self._release_model()
        return events

    def abort(self, request_id: str) -> None:
        stream = self._streams.pop(request_id, None)
        if stream is not None:
            assert self._pool is not None, "a request is live"
            self._pool.manager.cancel_request(stream.name)
            self._undelivered.append(TokenEvent(request_id, None, FinishReason.ABORTED))
            with self._closing_on_error():
                self._release_model()

    def close(self) -> None:
        """Ends the thread, frees the pool and restores the model's attention."""
        self._free_pool()
        self._attending.close()
        self._streams, self._undelivered = {}, []

    def _served(self, requests: Sequence[Request]) -> Iterable[list[TokenEvent]]:
        manager = self._require_pool([num_fed_tokens(request) for request in requests])
        told: dict[str, list[TokenEvent]] = {each.request_id: [] for each in requests}
        with self._closing_on_error(), attending(self._model, self._tuning.attention):
            self._submit(manager, requests)
            while self._streams:
                for event in self._next_events(waits=True) or ():
                    told[event.request_id].append(event)
        return told.values()

    def _submit(
        self,
        manager: ContinuousBatchingManager,
        requests: Sequence[Request],
        *,
        streaming: bool = False,
    ) -> None:
        """Queues all requests, under names of their own in the library."""
        with paused(manager):
            for request in requests:
                stream = _Stream(next(self._names), request)
                manager.add_request(
                    list(request.prompt_token_ids),
                    request_id=stream.name,
                    max_new_tokens=request.max_new_tokens,
                    eos_token_id=sorted(request.eos_token_ids),
                    streaming=streaming,
                )
                self._streams[request.request_id] = stream

    @contextmanager
    def _closing_on_error(self) -> Iterator[None]:
        """A context that closes the engine on any error: a late answer would be taken for one of the
        next call."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _require_pool(self, lens: Sequence[int]) -> ContinuousBatchingManager:
        """Returns the manager of a pool that is large enough, making a new one if necessary.

        Its size is that of the configuration or else enough for `max_num_seqs` sequences of these
        lengths, in tokens, without preemption.
        """
        if self._config.num_blocks is not None:
            num_tokens = self._config.num_blocks * self._config.block_size
            wanted = least = ceil(num_tokens / self._tuning.page_size)
            longest = num_tokens
        else:
            # One page more for each: 5.17 allocates it as soon as the last one is full.
            pages = sorted((ceil(n / self._tuning.page_size) + 1 for n in lens), reverse=True)
            wanted = ceil(sum(pages[: self._config.max_num_seqs]) / (1 - SAFETY_MARGIN))
            least = ceil(pages[0] / (1 - SAFETY_MARGIN))
            longest = 1 << (max(lens) - 1).bit_length()
        old = self._pool
        if old is not None and old.is_for(wanted, least, longest):
            return old.manager
        if old is not None and self._config.num_blocks is None:
            wanted, longest = max(wanted, 2 * old.num_asked), max(longest, old.longest)
        return self._make_pool(wanted, least, longest)

    def _make_pool(self, num_asked: int, least: int, longest: int) -> ContinuousBatchingManager:
        """Makes a pool for sequences of up to `longest` tokens.

        It has `num_asked` pages per layer, or fewer, but at least `least`, if the memory does not
        suffice. Raises `MemoryError`.
        """
        self._free_pool()
        num_pages = num_asked
        while self._pool is None:
            try:
                manager = manager_for(
                    self._model,
                    self._tuning,
                    num_pages=num_pages,
                    max_num_seqs=self._config.max_num_seqs,
                    longest=longest,
                )
                self._pool = _Pool(manager, num_asked, num_pages, longest, torch.get_num_threads())
            except MemoryError:
                if num_pages <= least:
                    raise
                num_pages = max(num_pages // 2, least)
        self._release = weakref.finalize(self, stop, self._pool.manager)
        return self._pool.manager

    def _free_pool(self) -> None:
        self._release()
        self._pool = None

    def _require_largest_pool(self) -> ContinuousBatchingManager:
        if self._pool is not None:
            return self._pool.manager
        return self._require_pool([self._limits.max_model_len] * self._config.max_num_seqs)

    def _release_model(self) -> None:
        """Restores the model's attention if no request is live, once aborted ones have left the
        model."""
        if not self._streams and self._pool is not None:
            while self._pool.manager.is_running() and not is_idle(self._pool.manager):
                sleep(WAIT_S)
            self._attending.close()

    def _next_events(self, *, waits: bool) -> list[TokenEvent] | None:
        """Returns an event for each new token of the next output, or None if there is none yet.

        The last event of a request has the finish reason; the output of an aborted one has no events.
        """
        assert self._pool is not None, "a request is live"
        output = next_output(self._pool.manager, waits=waits)
        if output is None:
            return None
        named = (each for each in self._streams.values() if each.name == output.request_id)
        stream = next(named, None)
        if stream is None:
            return []
        request_id, tokens = stream.request.request_id, output.generated_tokens
        events = [TokenEvent(request_id, token) for token in tokens[stream.num_delivered :]]
        stream.num_delivered = len(tokens)
        if output.is_finished():
            if tokens and not events:
                raise RuntimeError("transformers ended a request without delivering its last token")
            last = events.pop() if events else TokenEvent(request_id, None)
            events.append(last._replace(finish_reason=finish_reason(stream.request, tokens)))
            del self._streams[request_id]
        return events


def num_fed_tokens(request: Request) -> int:
    """Returns how many tokens of a request are fed: the last one never is, so it needs no room."""
    return max(1, len(request.prompt_token_ids) + request.max_new_tokens - 1)


def finish_reason(request: Request, token_ids: Sequence[int]) -> FinishReason:
    """Returns why a request has ended, which the library does not say."""
    is_stop = bool(token_ids) and token_ids[-1] in request.eos_token_ids
    return FinishReason.STOP if is_stop else FinishReason.LENGTH
