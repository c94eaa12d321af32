"""What a precision moves margins by, measured on a model."""

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from batchproof.models.catalogue import ModelUnderTest
from batchproof.oracle.oracle import Prompt
from batchproof.oracle.precision import Precision
from batchproof.oracle.rounding import coarse_to_score
from batchproof.records.probe_packs import NUM_RANKED

NOISE = Precision("bfloat16")  # of an honest engine
PRECISIONS = (
    NOISE,
    Precision("bfloat16", weights="int8"),
    Precision("bfloat16", weights="fp8"),
    Precision("bfloat16", weights="int4"),
    Precision("bfloat16", kv_cache="int8"),
    Precision("bfloat16", kv_cache="fp8"),
    Precision("bfloat16", kv_cache="int4"),
)


@dataclass(frozen=True)
class Ranked:
    """Of every predicted token the best ones in float64, (prompts, tokens, ranks), and how far each is
    behind the best, in units of a logit."""

    tokens: Tensor
    behind: Tensor

    @property
    def margin(self) -> Tensor:
        return self.behind[..., 1]

    @property
    def best(self) -> Tensor:
        return self.tokens[..., 0]


@torch.inference_mode()
def logits_of(model: Any, prompts: Sequence[Prompt]) -> Iterator[Tensor]:
    """Yields the logits (tokens, vocab) of each prompt in float64 on the CPU, one at a time:
    vocabularies are large."""
    for prompt in prompts:
        ids = torch.tensor([prompt], device=model.device)
        yield model(input_ids=ids, use_cache=False).logits[0].cpu().double()


def ranked(subject: ModelUnderTest, prompts: Sequence[Prompt]) -> Ranked:
    """Returns those of prompts of one length."""
    tokens, behind = [], []
    for logits in logits_of(subject.scorer, prompts):
        top = logits.topk(min(NUM_RANKED, logits.shape[-1]))
        tokens.append(top.indices)
        behind.append(top.values[:, :1] - top.values)
    return Ranked(torch.stack(tokens), torch.stack(behind))


def rounded(
    subject: ModelUnderTest, prompts: Sequence[Prompt], known: Ranked, precision: Precision
) -> tuple[Tensor, Tensor]:
    """Returns the shift of each margin at this precision, and the token that it makes the best."""
    began = time.monotonic()
    shifts, chosen = [], []
    model = coarse_to_score(subject, precision)
    for row, logits in enumerate(logits_of(model, prompts)):
        of_best, of_second = logits.gather(-1, known.tokens[row, :, :2]).unbind(-1)
        shifts.append(of_best - of_second - known.margin[row])
        chosen.append(logits.argmax(-1))
    print(f"{subject.name}: {precision}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return torch.stack(shifts), torch.stack(chosen)


def root_mean_square(shift: Tensor) -> float:
    return float(shift.square().mean().sqrt())
