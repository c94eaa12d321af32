"""An engine around a manager of transformers; see `transformers_cb.py`."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from itertools import count
from math import ceil
from typing import Any

import torch
from transformers import ContinuousBatchingManager, PreTrainedModel

from batchproof.api import Capability, Completion, EngineConfig, FinishReason, Limits, Request
from batchproof_engines.adapters.transformers_manager import (
    NAME,
    Draws,
    Tuning,
    attending,
    in_words,
    manager_for,
    next_output,
    paused,
    stop,
)

SAMPLED = ("temperature", "top_k", "top_p")  # what a request may set for itself
SAFETY_MARGIN = 0.15  # of the pool: if less is free, the library delays prompts


@dataclass(frozen=True)
class PoolLimits(Limits):
    """The limits of a model and, where the configuration gives its size, of the pool.

    Without `is_guarded` bad requests are left for the library to refuse. A duplicate id is still
    refused, because the library never sees the user's ids, and so is a field that it has no word for.
    """

    block_size: int
    num_blocks: int | None
    fields: frozenset[str]  # of `SamplingParams`, which requests may use
    is_guarded: bool

    def refusal(self, request: Request) -> str | None:
        beyond = None if request.sampling is None else request.sampling.beyond(self.fields)
        if beyond or not self.is_guarded:
            return beyond
        return super().refusal(request) or self._pool_refusal(request)

    def _pool_refusal(self, request: Request) -> str | None:
        needed = ceil(num_fed_tokens(request) / self.block_size)
        if self.num_blocks is None or needed <= self.num_blocks:
            return None
        return f"it needs {needed} blocks of KV cache, but the pool has {self.num_blocks}"


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


class TransformersEngine:
    """An engine; `peer` describes its mode of operation, because modes differ in speed severalfold."""

    capabilities = frozenset({Capability.CLOSING})  # at least
    release = f"transformers continuous batching {version('transformers')}"

    def __init__(self, model: PreTrainedModel, config: EngineConfig, tuning: Tuning) -> None:
        self._model = model
        self._config = config
        self._tuning = tuning
        own = Limits.of(model, config)
        if tuning.sampling:
            self.capabilities = self.capabilities | {Capability.SAMPLING}
        self.sampling_fields = frozenset(SAMPLED if tuning.sampling else ())
        self._limits = PoolLimits(
            own.vocab_size,
            own.max_model_len,
            config.block_size,
            config.num_blocks,
            self.sampling_fields,
            tuning.is_guarded,
        )
        self._draws = Draws()
        self._names = (f"{NAME}-{number}" for number in count())  # a user's ids may be used again
        self._pool: _Pool | None = None
        self._release: Callable[[], object] = lambda: None
        if config.num_blocks is not None or config.max_model_len is not None:
            self._require_pool([self._limits.max_model_len] * config.max_num_seqs)

    @property
    def notes(self) -> tuple[str, ...]:
        """Returns its conventions and settings in sentences, for a report."""
        guard = (
            "Bad requests are refused by the adapter, for one of them would end the library's thread; "
            "it also undoes that the library seeds torch's generators when it makes a manager"
            if self._tuning.is_guarded
            else "Bad requests are given to the library as they are, and what it seeds stays seeded"
        )
        return (
            f"{self.peer}; keys and values are kept in the dtype of the model.",
            "An EOS is in the output; caps and EOS ids are per request. The library gives no finish "
            "reason: it is derived from the last token.",
            f"{guard}; an id that is live is refused by the adapter, which names requests itself.",
        )

    @property
    def peer(self) -> str:
        """Returns a description of its mode of operation, for a report."""
        return in_words(self._pool.manager if self._pool else None, self._tuning.attention)

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Returns one completion per request. Raises `RuntimeError` if the library fails or its
        thread ends."""
        refusals = self._limits.refusals(requests)
        good = [r for r, refusal in zip(requests, refusals, strict=True) if refusal is None]
        served = iter(self._serve(good) if good else ())
        return [
            next(served) if refusal is None else Completion.refused(r.request_id, refusal)
            for r, refusal in zip(requests, refusals, strict=True)
        ]

    def close(self) -> None:
        """Ends the thread and frees the pool."""
        self._free_pool()

    def _serve(self, requests: Sequence[Request]) -> list[Completion]:
        manager = self._require_pool([num_fed_tokens(request) for request in requests])
        with self._closing_on_error(), self._working():
            names = self._submit(manager, requests)
            tokens = _collect(manager, names)
        return [
            Completion(request.request_id, tokens[name], finish_reason(request, tokens[name]))
            for request, name in zip(requests, names, strict=True)
        ]

    def _submit(
        self,
        manager: ContinuousBatchingManager,
        requests: Sequence[Request],
        *,
        streaming: bool = False,
    ) -> list[str]:
        """Queues all requests and returns their names in the library."""
        names = [next(self._names) for _ in requests]
        with paused(manager):
            for name, request in zip(names, requests, strict=True):
                manager.add_request(
                    list(request.prompt_token_ids),
                    request_id=name,
                    max_new_tokens=request.max_new_tokens,
                    eos_token_id=sorted(request.eos_token_ids),
                    streaming=streaming,
                    **(self._drawing(request) if self.sampling_fields else {}),
                )
        return names

    def _drawing(self, request: Request) -> dict[str, Any]:
        """Returns the library's parameters; of the likeliest token alone for a greedy request."""
        asked = request.sampling
        if asked is None or asked.temperature == 0:
            return {"temperature": 1.0, "top_k": 1, "top_p": 1.0}
        top_k = asked.top_k or self._limits.vocab_size
        return {"temperature": asked.temperature, "top_k": top_k, "top_p": asked.top_p}

    @contextmanager
    def _closing_on_error(self) -> Iterator[None]:
        """A context that closes the engine on any error: a late answer would be taken for one of the
        next call."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    @contextmanager
    def _working(self) -> Iterator[None]:
        """A context in which the library may work with the model."""
        has_draws = self.sampling_fields and self._tuning.is_guarded
        with (
            attending(self._model, self._tuning.attention),
            self._draws.lent() if has_draws else nullcontext(),
        ):
            yield

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


def num_fed_tokens(request: Request) -> int:
    """Returns how many tokens of a request are fed: the last one never is, so it needs no room."""
    return max(1, len(request.prompt_token_ids) + request.max_new_tokens - 1)


def _collect(manager: ContinuousBatchingManager, names: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Waits for all requests and returns the tokens of each. Raises `RuntimeError`."""
    tokens: dict[str, tuple[int, ...]] = {}
    missing = set(names)
    while missing:
        output = next_output(manager, waits=True)
        assert output is not None, "it waits for one"
        if output.is_finished() and output.request_id in missing:  # not a late output of an aborted one
            tokens[output.request_id] = tuple(output.generated_tokens)
            missing.remove(output.request_id)
    return tokens


def finish_reason(request: Request, token_ids: Sequence[int]) -> FinishReason:
    """Returns why a request has ended, which the library does not say."""
    is_stop = bool(token_ids) and token_ids[-1] in request.eos_token_ids
    return FinishReason.STOP if is_stop else FinishReason.LENGTH
