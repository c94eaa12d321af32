"""The adequacy gate: can this model show a fault in its tokens at all?

A model that repeats one token, or ignores most of its context, gives a broken engine the right answers,
so equal tokens prove nothing. Before a user's checkpoint judges an engine, its own next tokens are
observed while its input is damaged as a faulty engine would damage it. No engine takes part.
"""

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from batchproof.models.catalogue import ModelUnderTest

NUM_PROMPTS = 40
LEAST_FLIP_RATE = 0.1
PROMPT_LEN = (4, 10)


@dataclass(frozen=True, slots=True)
class Adequacy:
    """Shares of next tokens that change under each damage, over `NUM_PROMPTS` random prompts."""

    wrong_first_token: float
    dropped_key: float  # one of the last four keys hidden from the last query
    num_distinct_tokens: int  # among the undamaged next tokens

    @property
    def is_adequate(self) -> bool:
        """Whether both damages change at least `LEAST_FLIP_RATE` of the tokens."""
        return min(self.wrong_first_token, self.dropped_key) >= LEAST_FLIP_RATE

    def __str__(self) -> str:
        return (
            f"next tokens that change: wrong first token {self.wrong_first_token:.0%}, dropped key "
            f"{self.dropped_key:.0%}; {self.num_distinct_tokens} distinct tokens after {NUM_PROMPTS} "
            f"prompts"
        )


@torch.inference_mode()
def measure_adequacy(subject: ModelUnderTest) -> Adequacy:
    """Measures a model with about `4 * NUM_PROMPTS` short forward passes."""
    rng = random.Random(0)
    right: list[int] = []
    flips = {"first": 0, "key": 0}
    for _ in range(NUM_PROMPTS):
        prompt = [rng.randrange(subject.vocab_size) for _ in range(rng.randint(*PROMPT_LEN))]
        right.append(_next_token(subject, prompt))
        other = [(prompt[0] + rng.randrange(1, subject.vocab_size)) % subject.vocab_size, *prompt[1:]]
        flips["first"] += _next_token(subject, other) != right[-1]
        hidden = len(prompt) - 1 - rng.randint(1, min(4, len(prompt) - 1))
        mask = torch.ones(1, len(prompt), dtype=torch.long)
        mask[0, hidden] = 0
        # A mask alone does not renumber the remaining tokens: positions follow from the place.
        flips["key"] += _next_token(subject, prompt, mask) != right[-1]
    return Adequacy(
        wrong_first_token=flips["first"] / NUM_PROMPTS,
        dropped_key=flips["key"] / NUM_PROMPTS,
        num_distinct_tokens=len(set(right)),
    )


def _next_token(subject: ModelUnderTest, prompt: list[int], mask: Tensor | None = None) -> int:
    device = subject.model.device
    input_ids = torch.tensor([prompt], device=device)
    seen = None if mask is None else mask.to(device)
    logits = subject.model(input_ids=input_ids, attention_mask=seen, use_cache=False).logits
    return int(logits[0, -1].argmax())
