"""A trial batch for engines that give no logits: do they choose tokens that the model would choose?"""

from __future__ import annotations

import random
from collections.abc import Callable
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedModel

from batchproof.api import (
    Completion,
    Engine,
    EngineConfig,
    Limits,
    Request,
)
from batchproof.errors import UnsupportedModelError, UsageError

PROMPT_LENS = (14, 1, 6)  # longer than a step; one token; with a step of its own
NUM_NEW_TOKENS = 4
CONFIG = EngineConfig(max_num_seqs=3, max_num_batched_tokens=8, block_size=4)
_SERVED: WeakKeyDictionary[PreTrainedModel, set[tuple[object, ...]]] = WeakKeyDictionary()


def refuse_wrong_tokens(
    name: str, model: PreTrainedModel, how: object, build: Callable[[EngineConfig], Engine]
) -> None:
    """Raises `UnsupportedModelError` if unequal prompts, served together, get tokens whose logits in a
    pass of the model alone are below the best by more than a fiftieth of their spread (a fifth in 16
    bit), or if serving them fails. `how`: what beside the model decides that; asked once for each."""
    facts = (name, how, model.dtype, model.device)
    if facts in _SERVED.setdefault(model, set()):
        return
    requests = _requests(model)
    try:
        engine = build(CONFIG)
        completions = engine.generate(requests)
        engine.close()  # type: ignore[attr-defined]
        missed = max(_missed(model, *each) for each in zip(requests, completions, strict=True))
    except UsageError:
        raise
    except Exception as error:
        raise _unsupported(name, model, f"a trial batch failed: {error}") from error
    if not missed <= (0.02 if model.dtype in (torch.float32, torch.float64) else 0.2):
        where = f"{missed:.0%} of the spread of the logits below the best"
        raise _unsupported(name, model, f"in a batch it chooses tokens that are {where}")
    _SERVED[model].add(facts)


def _requests(model: PreTrainedModel) -> list[Request]:
    """Random prompts, as long as the context allows."""
    limits, rng = Limits.of(model, CONFIG), random.Random(0)
    lens = [max(1, min(length, limits.max_model_len - NUM_NEW_TOKENS)) for length in PROMPT_LENS]
    return [
        Request(f"trial-{i}", tuple(rng.choices(range(limits.vocab_size), k=length)), NUM_NEW_TOKENS)
        for i, length in enumerate(lens)
    ]


def _missed(model: PreTrainedModel, request: Request, completion: Completion) -> float:
    """How far the worst chosen token is below the best, as a share of the spread of the logits."""
    if completion.error is not None:
        raise ValueError(completion.error)
    fed = request.prompt_token_ids + completion.token_ids[:-1]
    with torch.inference_mode():
        output = model(input_ids=torch.tensor([fed], device=model.device), use_cache=False)
    logits = output.logits[0, -len(completion.token_ids) :].float()
    chosen = logits.gather(1, torch.tensor(completion.token_ids, device=logits.device)[:, None])
    best = logits.max(dim=1).values
    return float(((best - chosen[:, 0]) / (best - logits.min(dim=1).values)).max())


def _unsupported(name: str, model: PreTrainedModel, why: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"engine {name!r} cannot serve {type(model).__name__}: {why}")
