"""The oracle of a toy, and whether the toy can show a fault at all."""

from __future__ import annotations

import copy
import random
from functools import cached_property

import torch
from transformers import PreTrainedModel

from batchproof.errors import UnsupportedModelError
from batchproof.models.catalogue import ModelUnderTest, moved
from batchproof.oracle.oracle import Oracle, centred, teacher_forced
from batchproof.run.registry import reference_factory

CONTEXT_LEN = 7  # tokens that must move the last logits: two layers with a window of 5 reach 9
FIRST_ORDINARY_TOKEN = 4  # after padding, beginning, end
MOST_ROUNDING = 1e-3  # of the spread of the logits: a larger E is not rounding
SMALLER_IN_BFLOAT16 = 0.5
MOST_ROUNDING_IN_BFLOAT16 = 0.05  # with a larger E a wrong mask could hide


class UnprovenError(Exception):
    """The engine may be right with this model, but that cannot be shown."""


class _ToyUnderTest(ModelUnderTest):
    @cached_property
    def exact(self) -> PreTrainedModel:
        """torch's grouped matrix product, which mixtures of experts use, has no float64."""
        model = super().exact
        model.set_experts_implementation("eager")
        return model


def toy_oracle(name: str, model: PreTrainedModel, seed: int) -> Oracle:
    """Returns the oracle of a toy. Raises `UnprovenError` if per-prompt generation contradicts one
    float64 pass, or if the logits do not depend on the whole context."""
    try:
        oracle = Oracle(_ToyUnderTest(name, model), reference_factory())
        error_unit = oracle.error.max_abs
    except UnsupportedModelError as error:
        raise UnprovenError(f"there is no reference: {error}") from error
    except Exception as error:
        raise UnprovenError(f"the reference fails: {error}") from error
    spread = _spread(model)
    if not error_unit <= MOST_ROUNDING * spread:
        raise UnprovenError(
            f"per-prompt generation is {error_unit:.2g} off one float64 pass; the logits spread "
            f"over {spread:.2g}"
        )
    _require_adequacy(oracle, seed)
    return oracle


def rounded_oracle(name: str, model: PreTrainedModel) -> Oracle | None:
    """Returns the oracle of the toy in bfloat16, with smaller weights, which amplify less; None if
    rounding leaves nothing to be judged by, or the model does not run in it."""
    rounded = moved(copy.deepcopy(model), "cpu", torch.bfloat16)
    for weight in rounded.parameters():
        if weight.dim() > 1:
            weight.data.mul_(SMALLER_IN_BFLOAT16)
    oracle = Oracle(_ToyUnderTest(name, rounded), reference_factory())
    try:
        error_unit = oracle.error.max_abs
    except Exception:
        return None
    return oracle if error_unit <= MOST_ROUNDING_IN_BFLOAT16 * _spread(rounded) else None


def _spread(model: PreTrainedModel) -> float:
    with torch.inference_mode():
        logits = model(input_ids=torch.arange(CONTEXT_LEN)[None], use_cache=False).logits
    return float(logits.max() - logits.min())


def _require_adequacy(oracle: Oracle, seed: int) -> None:
    """Raises `UnprovenError` unless each token of a short context, and the order of two, moves the
    last logits beyond the bound.

    The two are as near as a window reaches: a layer without positions knows only the causal order,
    and the layer above must distinguish them.
    """
    tokens = range(FIRST_ORDINARY_TOKEN, oracle.subject.vocab_size)
    drawn = random.Random(seed).sample(tokens, 2 * CONTEXT_LEN)
    prompt, others = drawn[:CONTEXT_LEN], drawn[CONTEXT_LEN:]
    changed = {"the order of tokens 3 and 4": [*prompt[:3], prompt[4], prompt[3], *prompt[5:]]}
    for place, other in enumerate(others):
        changed[f"token {place}"] = [*prompt[:place], other, *prompt[place + 1 :]]
    right, *scores = teacher_forced(
        oracle.subject, [(tuple(each), (0,)) for each in (prompt, *changed.values())]
    )
    bound = oracle.logit_bound
    for what, score in zip(changed, scores, strict=True):
        if not float((centred(score) - centred(right)).abs().max()) > bound:
            raise UnprovenError(f"{what} of {CONTEXT_LEN} does not move the last logits")
