"""Recurrent states that are not those behind the prefix that a prompt takes over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.recurrent import BOTH, cleared, planted_in_states
from batchproof_paged.checkpoints import Checkpoint, Checkpoints
from batchproof_paged.rows import Scheduled
from batchproof_paged.sequence import Sequence


@planted_in_states(Promise.P1, "ggml-org/llama.cpp#26557")
class StateOfALongerPromptIsTaken(Checkpoints):
    """Behind a known prefix a prompt starts with the states of the longest prompt that has it, which
    hold that prompt's other tokens as well."""

    def num_resumable(self, sequence: Sequence, blocks: tuple[int, ...]) -> int:
        """Returns all blocks if any checkpoint begins with them."""
        return len(blocks) if self._beginning_with(sequence, len(blocks) * self._block_size) else 0

    def _behind(self, sequence: Sequence, num_tokens: int) -> Checkpoint:
        return max(self._beginning_with(sequence, num_tokens), key=lambda each: len(each.token_ids))

    def _beginning_with(self, sequence: Sequence, num_tokens: int) -> list[Checkpoint]:
        tokens = tuple(sequence.token_ids[:num_tokens])
        return [each for each in self._by_block.values() if each.token_ids[:num_tokens] == tokens]


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
        """Keeps the states as those behind the border."""
        border = (num_tokens - 1) // self._block_size * self._block_size
        if border:
            super().keep(sequence, border, cache, row)


@planted_in_states(Promise.P8, "ml-explore/mlx-lm#1515")
class TheKeptStateIsTheLiveOne(Checkpoints):
    """A prompt that starts at a checkpoint goes on in the kept states themselves, not in a copy."""

    def restored(self, sequence: Sequence, num_tokens: int) -> Any:
        """Hands out what is kept."""
        return self._behind(sequence, num_tokens).cache


@planted_in_states(Promise.P1, "vllm-project/vllm#55600")
class StateOfAnotherPromptOfThatLength(Checkpoints):
    """Behind a known prefix a prompt starts with the states that any prompt left there last."""

    def _behind(self, sequence: Sequence, num_tokens: int) -> Checkpoint:
        del sequence
        *_, last = (each for each in self._by_block.values() if len(each.token_ids) == num_tokens)
        return last


@planted_in_states(Promise.P8, "vllm-project/vllm#56525")
class StatesOutliveTheirBlocks(Checkpoints):
    """The states behind a block are found although the block has been given to other tokens."""

    def _fits(self, found: Checkpoint, sequence: Sequence, num_tokens: int) -> bool:
        """Looks at the length alone."""
        del sequence
        return len(found.token_ids) == num_tokens

    def keep(self, sequence: Sequence, num_tokens: int, cache: Any, row: int) -> None:
        """Keeps what is there already."""
        kept = dict(self._by_block)
        super().keep(sequence, num_tokens, cache, row)
        self._by_block |= kept

    def forget_overwritten(self, rows: object) -> None:
        """Forgets nothing."""
