"""Recurrent states that are not those behind the prefix that a prompt takes over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from batchproof.promises import Promise
from batchproof_engines.faulty.recurrent import BOTH, cleared, planted_in_states
from batchproof_engines.paged.checkpoints import Checkpoints
from batchproof_engines.paged.rows import Scheduled
from batchproof_engines.paged.sequence import Sequence


@planted_in_states(Promise.P1, "ggml-org/llama.cpp#26557")
class StateOfALongerPromptIsTaken(Checkpoints):
    """Behind a known prefix a prompt starts with the states of the longest prompt that has it, which
    hold that prompt's other tokens as well."""

    def longest(self, sequence: Sequence, num_blocks: int) -> int:
        """Returns all blocks if any checkpoint begins with them."""
        return num_blocks if self._beginning_with(sequence, num_blocks * self._block_size) else 0

    def restored(self, sequence: Sequence, num_tokens: int) -> Any:
        """Restores the longest."""
        longest = max(self._beginning_with(sequence, num_tokens), key=len)
        return super().restored(Sequence(sequence.request, [*longest]), len(longest))

    def _beginning_with(self, sequence: Sequence, num_tokens: int) -> list[tuple[int, ...]]:
        tokens = tuple(sequence.token_ids[:num_tokens])
        return [each for each in self._caches if each[:num_tokens] == tokens]


@planted_in_states(Promise.P7, "ml-explore/mlx-lm#1253")
class StateStartsAnewBehindAPrefix(Checkpoints):
    """Behind a known prefix the keys are those of the prefix, and the states are empty."""

    def restored(self, sequence: Sequence, num_tokens: int) -> Any:
        """Restores nothing but the shapes."""
        return cleared(super().restored(sequence, num_tokens), *BOTH)


@planted_in_states(Promise.P7, "vllm-project/vllm#47861")
class StateIsAheadOfItsBorder(Checkpoints):
    """A chunk is not cut at a block border: the states behind it are kept for the border before."""

    def places(self, row: Scheduled) -> Iterator[int]:
        """Yields the end of the chunk instead of the border in it."""
        yield from {row.context_len + row.query_len for _ in super().places(row)}

    def keep(self, sequence: Sequence, num_tokens: int, cache: Any, row: int) -> None:
        """Keeps the states under the tokens before the border."""
        super().keep(sequence, (num_tokens - 1) // self._block_size * self._block_size, cache, row)


@planted_in_states(Promise.P8, "ml-explore/mlx-lm#1515")
class TheKeptStateIsTheLiveOne(Checkpoints):
    """A prompt that starts at a checkpoint goes on in the kept states themselves, not in a copy."""

    def restored(self, sequence: Sequence, num_tokens: int) -> Any:
        """Hands out what is kept."""
        return self._caches[tuple(sequence.token_ids[:num_tokens])]


@planted_in_states(Promise.P1, "vllm-project/vllm#55600")
class StateOfAnotherPromptOfThatLength(Checkpoints):
    """Behind a known prefix a prompt starts with the states that any prompt left there last."""

    def restored(self, sequence: Sequence, num_tokens: int) -> Any:
        """Restores the states kept last behind so many tokens."""
        *_, last = (each for each in self._caches if len(each) == num_tokens)
        return super().restored(Sequence(sequence.request, [*last]), num_tokens)
