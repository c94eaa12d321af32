"""Three unequal random prompts, served together when an engine is built, against the model alone.

The second net after `model_support.py`: a mask, position or ALiBi bias that a model does not accept
from an engine shows in no configuration, but moves the logits by a multiple of any rounding error. An
engine that returns logits is judged by them (`probe_logits`), any other by the tokens it chooses
(`probe_tokens`).
"""

import random
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel

from batchproof.api import Completion, Engine, EngineConfig, Limits, Request
from batchproof.errors import UsageError
from batchproof_engines.model_support import cache_parameter, counts_from_zero, state_of, unsupported

NUM_NEW_TOKENS = 4
LEAST_TOLERANCE = 0.02  # of the spread of the logits
ROUNDINGS = 6.0  # how many times its own rounding an engine may be off, where that is more
# With a budget of 8 tokens, an engine that feeds chunks needs several steps for the first prompt. Its
# last chunk shares a step with the prompt of one token and with a chunk of the third; then come steps
# that mix decodes with a chunk, and steps of decodes alone.
LOGITS_PROMPT_LENS = (21, 1, 6)  # the first is longer than a block of 16 tokens
TOKENS_PROMPT_LENS = (14, 1, 6)
TWIN_LENS = (3, 3)  # in a call of their own: some models are wrong if two rows have the same shape
LOGITS_CONFIG = EngineConfig(max_num_seqs=3, max_num_batched_tokens=8, return_logits=True)
TOKENS_CONFIG = EngineConfig(max_num_seqs=3, max_num_batched_tokens=8, block_size=4)

# The circumstances under which a model has passed, for as long as it lives: engines are built often.
_PASSED: WeakKeyDictionary[PreTrainedModel, set[tuple[object, ...]]] = WeakKeyDictionary()


def probe_logits(
    engine_name: str,
    model: PreTrainedModel,
    build: Callable[[PreTrainedModel, EngineConfig], Engine],
    options: object = None,
) -> None:
    """Compares the logits of a trial batch with one pass of the model alone, without a cache.

    `options` is whatever else about the engine may affect the outcome (hashable). Raises
    `UnsupportedModelError` if serving fails, or if the logits differ by more than `LEAST_TOLERANCE` of
    the spread (maximum minus minimum) of the model's own and by more than rounding explains.
    """
    facts = (
        "logits",
        engine_name,
        options,
        model.config._attn_implementation,
        model.dtype,
        model.device,
        state_of(model),
    )
    if facts in _PASSED.setdefault(model, set()):
        return
    requests, twins = (_random_requests(model, lens) for lens in (LOGITS_PROMPT_LENS, TWIN_LENS))
    try:
        engine = build(model, LOGITS_CONFIG)
        answered = [*zip(requests, engine.generate(requests), strict=True)]
        answered += zip(twins, engine.generate(twins), strict=True)
        pairs = [_both_logits(model, *each) for each in answered]
    except Exception as error:
        why = f"a trial batch failed: {_last_line(error)}"
        raise unsupported(engine_name, model, why) from error
    for got, expected, rounding in pairs:
        difference = (got - expected).abs().max().item()
        spread = (expected.max() - expected.min()).item()
        if not difference <= max(LEAST_TOLERANCE * spread, ROUNDINGS * rounding):
            why = f"in a batch its logits differ by {difference:.2g} from alone"
            raise unsupported(engine_name, model, why)
    _PASSED[model].add(facts)


def probe_tokens(
    engine_name: str, model: PreTrainedModel, options: object, build: Callable[[EngineConfig], Engine]
) -> None:
    """Checks that the tokens of a trial batch are ones that the model alone would choose.

    `options` is as for `probe_logits`; the engine that `build` returns has a `close` method. Raises
    `UnsupportedModelError` if serving fails, or if the logit of a chosen token, in a pass of the model
    alone, is below the best by more than `_tolerance` of the spread. A `UsageError` of `build` passes
    through.
    """
    facts = ("tokens", engine_name, options, model.dtype, model.device, state_of(model))
    if facts in _PASSED.setdefault(model, set()):
        return
    requests = _random_requests(model, TOKENS_PROMPT_LENS)
    try:
        engine = build(TOKENS_CONFIG)
        completions = engine.generate(requests)
        engine.close()  # type: ignore[attr-defined]
        missed = max(_shortfall(model, *each) for each in zip(requests, completions, strict=True))
    except UsageError:
        raise
    except Exception as error:
        raise unsupported(engine_name, model, f"a trial batch failed: {error}") from error
    if not missed <= _tolerance(model):
        where = f"{missed:.0%} of the spread of the logits below the best"
        raise unsupported(engine_name, model, f"in a batch it chooses tokens that are {where}")
    _PASSED[model].add(facts)


def _tolerance(model: PreTrainedModel) -> float:
    """Returns the share of the logits' spread that rounding may account for."""
    return 0.02 if model.dtype in (torch.float32, torch.float64) else 0.2


def _random_requests(model: PreTrainedModel, prompt_lens: Sequence[int]) -> list[Request]:
    """Returns requests of these prompt lengths, at most the model's context, with fixed random
    tokens."""
    limits, rng = Limits.of(model, EngineConfig()), random.Random(0)
    longest = max(1, limits.max_model_len - NUM_NEW_TOKENS)
    return [
        Request(
            f"trial-{i}",
            tuple(rng.choices(range(limits.vocab_size), k=min(length, longest))),
            NUM_NEW_TOKENS,
        )
        for i, length in enumerate(prompt_lens)
    ]


def _logits_alone(model: PreTrainedModel, request: Request, completion: Completion) -> Tensor:
    """Returns the float32 logits (num_output_tokens, vocab) that the model alone chooses from.

    Raises `ValueError` if the request was refused.
    """
    if completion.error is not None:
        raise ValueError(completion.error)
    fed = torch.tensor([request.prompt_token_ids + completion.token_ids[:-1]], device=model.device)
    with torch.inference_mode():
        logits: Tensor = model(input_ids=fed, use_cache=False).logits
    return logits[0, -len(completion.token_ids) :].float()


def _both_logits(
    model: PreTrainedModel, request: Request, completion: Completion
) -> tuple[Tensor, Tensor, float]:
    """Returns the engine's logits and those of the model alone, both (num_output_tokens, vocab), and
    how far the model alone, in 16 bits, is from itself when it is fed token by token."""
    expected = _logits_alone(model, request, completion)
    if completion.logits is None:
        raise ValueError("there are no logits")
    rounding = 0.0
    if model.dtype not in (torch.float32, torch.float64):
        rounding = (_logits_in_steps(model, request, completion) - expected).abs().max().item()
    return completion.logits, expected, rounding


@torch.inference_mode()
def _logits_in_steps(model: PreTrainedModel, request: Request, completion: Completion) -> Tensor:
    """Returns what `_logits_alone` does, of passes over the prompt and then over single tokens, or,
    without a cache, over all tokens so far."""
    name, tokens = cache_parameter(model), request.prompt_token_ids + completion.token_ids
    given: dict[str, Any] = {"use_cache": name is not None}
    gives_positions = counts_from_zero(model)
    rows, fed = [], 0
    for end in range(len(request.prompt_token_ids), len(tokens)):
        if gives_positions:
            given["position_ids"] = torch.arange(fed, end, device=model.device)[None]
        output = model(input_ids=torch.tensor([tokens[fed:end]], device=model.device), **given)
        rows.append(output.logits[0, -1].float())
        if name is not None:
            given[name], fed = output[name], end
    return torch.stack(rows)


def _shortfall(model: PreTrainedModel, request: Request, completion: Completion) -> float:
    """Returns how far the worst chosen token is below the best, as a share of the logits' spread."""
    logits = _logits_alone(model, request, completion)
    chosen = logits.gather(1, torch.tensor(completion.token_ids, device=logits.device)[:, None])
    best = logits.max(dim=1).values
    return float(((best - chosen[:, 0]) / (best - logits.min(dim=1).values)).max())


def _last_line(error: Exception) -> str:
    """Returns the line of a long report, such as TorchScript's, that says what happened."""
    report, _, _ = str(error).partition("\n\nAt:\n")  # Python's frames follow
    return next((line for line in reversed(report.splitlines()) if line.strip()), repr(error))
