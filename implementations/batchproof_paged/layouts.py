"""Which sizes of steps are captured, and which of them a step takes: few layouts, little padding."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import NamedTuple

from transformers import PreTrainedModel

from batchproof.api import EngineConfig

MOST_PROMPT_TOKENS = 2048
# About what a GPU does while the host launches a pass, or a layer of it, by itself: a longer step hides
# the host's work, and padding would cost more than a replay saves.
WORTH_CAPTURING_FLOPS = 4e12
WORTH_CAPTURING_FLOPS_PER_LAYER = 3e11
FREE_FLOPS = 1e11  # of padding: a fraction of a millisecond of a GPU


class Layout(NamedTuple):
    """What a captured step has room for."""

    num_decodes: int  # D
    num_prompt_tokens: int  # N; 0: decodes alone, all of which are sampled
    num_columns: int  # of the block tables


@dataclass(frozen=True, slots=True)
class Buckets:
    """The sizes that decode rows and prompt tokens are padded to, ascending."""

    decodes: Seq[int]
    prompts: Seq[int]

    @classmethod
    def of(cls, model: PreTrainedModel, config: EngineConfig, least_tokens: int) -> Buckets:
        """`least_tokens` are in the smallest step."""
        flops_per_token = 2 * model.num_parameters()
        num_layers = getattr(model.config.get_text_config(), "num_hidden_layers", 1)
        worth = max(WORTH_CAPTURING_FLOPS, num_layers * WORTH_CAPTURING_FLOPS_PER_LAYER)
        most = max(16, min(MOST_PROMPT_TOKENS, int(worth / flops_per_token)))
        return cls(
            decode_buckets(max(config.max_num_seqs, least_tokens), least_tokens),
            prompt_buckets(min(config.max_num_batched_tokens, most), FREE_FLOPS / flops_per_token),
        )

    def layouts(self, num_columns: int) -> list[Layout]:
        """Returns all layouts of that width, the largest first."""
        layouts = [Layout(num, 0, num_columns) for num in self.decodes]
        layouts += [Layout(d, num, num_columns) for num in self.prompts for d in (0, self.decodes[-1])]
        return sorted(layouts, key=lambda each: each[0] + each[1], reverse=True)

    def fitting(self, num_decodes: int, num_prompt_tokens: int, num_columns: int) -> Layout:
        """Returns the layout of a step with room for at most `prompts[-1]` prompt tokens."""
        if not num_prompt_tokens:
            return Layout(_at_least(self.decodes, num_decodes), 0, num_columns)
        decodes = self.decodes[-1] if num_decodes else 0
        return Layout(decodes, _at_least(self.prompts, num_prompt_tokens), num_columns)


def _at_least(buckets: Seq[int], size: int) -> int:
    return buckets[bisect_left(buckets, size)]


def decode_buckets(most: int, least: int = 1) -> Seq[int]:
    """Returns 1, 2, 4, 8, then multiples of 8: little padding for many rows, few graphs for few."""
    sizes = [1, 2, 4, *range(8, most + 8, 8)]
    return [size for size in sizes if least <= size < most] + [most]


def prompt_buckets(most: int, num_free: float = 0) -> Seq[int]:
    """Returns 16, 32, ... 256, then multiples of 256; powers of 4 as long as padding is no more than
    `num_free` tokens, which cost nothing that matters."""
    sizes = [16]
    while sizes[-1] < most:
        size = sizes[-1]
        sizes.append(4 * size if 3 * size <= num_free else size + min(size, 256))
    return [size for size in sizes if size < most] + [most]
