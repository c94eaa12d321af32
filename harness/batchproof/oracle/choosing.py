"""The stages of `batchproof.decoding.sampling` in float64, a whole answer at once: what each of its
tokens should be chosen from."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from batchproof.api import Request
from batchproof.decoding.sampling import SamplingParams
from batchproof.oracle.grammars import automaton

AS_IT_IS = SamplingParams()


def sampling_of(request: Request) -> SamplingParams:
    """Returns the request's parameters; those of greedy decoding if it has none."""
    return request.sampling or AS_IT_IS


def is_drawn(request: Request) -> bool:
    """Returns whether its tokens are drawn at random, so that no answer is the right one."""
    return sampling_of(request).draws


def is_plain(request: Request) -> bool:
    """Returns whether each token is the argmax of the model's own logits."""
    asked = sampling_of(request)
    return request.grammar is None and not asked.changes_logits and not asked.draws


def is_malformed(request: Request) -> bool:
    """Returns whether the request's grammar has no text, or cannot be read."""
    try:
        return request.grammar is not None and not automaton(request.grammar).start
    except ValueError:
        return True


def num_until_end(request: Request, token_ids: tuple[int, ...]) -> int | None:
    """Returns how many of these tokens the answer has that ends at its first EOS or stop sequence; None
    if there is neither."""
    asked = sampling_of(request)
    for num in range(1, len(token_ids) + 1):
        if token_ids[num - 1] in request.eos_token_ids:
            return num
        sofar = token_ids[:num]
        is_stopped = any(sofar[-len(each) :] == each for each in asked.stop_token_sequences)
        if num >= asked.min_tokens and is_stopped:
            return num
    return None


@dataclass(frozen=True, slots=True)
class Past:
    """What the stages know of the tokens before each of n places."""

    prompt: Tensor  # how often the prompt has each token, float64 `(1 or n, vocab)`
    counts: Tensor  # how often each was produced before, float64 `(n, vocab)`
    num_produced: Tensor  # int64 `(n, 1)`


def past_of(request: Request, token_ids: tuple[int, ...], vocab_size: int) -> Past:
    prompt = torch.bincount(torch.tensor(request.prompt_token_ids), minlength=vocab_size)
    chosen = torch.nn.functional.one_hot(torch.tensor(token_ids), vocab_size).double()
    counts = chosen.cumsum(dim=0) - chosen
    return Past(prompt.double()[None], counts, torch.arange(len(counts))[:, None])


def _only_allowed(values: Tensor, request: Request, _: Past) -> Tensor:
    allowed = sampling_of(request).allowed_token_ids
    if allowed is None:
        return values
    is_allowed = torch.zeros(values.shape[1], dtype=torch.bool)
    is_allowed[sorted(allowed)] = True
    return values.masked_fill(~is_allowed, -torch.inf)


def _without_ends(values: Tensor, request: Request, past: Past) -> Tensor:
    is_end = torch.zeros(values.shape[1], dtype=torch.bool)
    is_end[[token for token in request.eos_token_ids if 0 <= token < len(is_end)]] = True
    is_early = past.num_produced < sampling_of(request).min_tokens
    return values.masked_fill(is_early & is_end, -torch.inf)


def _biased(values: Tensor, request: Request, _: Past) -> Tensor:
    bias = torch.zeros(values.shape[1], dtype=values.dtype)
    for token, each in sampling_of(request).logit_bias:
        bias[token] += each
    return values + bias


def _less_repeated(values: Tensor, request: Request, past: Past) -> Tensor:
    penalty = sampling_of(request).repetition_penalty
    scaled = torch.where(values > 0, values / penalty, values * penalty)
    return torch.where((past.counts > 0) | (past.prompt > 0), scaled, values)


# By the field that each is about, in their order.
STAGES: dict[str, Callable[[Tensor, Request, Past], Tensor]] = {
    "allowed_token_ids": _only_allowed,
    "min_tokens": _without_ends,
    "logit_bias": _biased,
    "repetition_penalty": _less_repeated,
    "frequency_penalty": lambda values, request, past: (
        values - sampling_of(request).frequency_penalty * past.counts
    ),
    "presence_penalty": lambda values, request, past: (
        values - sampling_of(request).presence_penalty * (past.counts > 0)
    ),
}


def in_grammar(request: Request, token_ids: tuple[int, ...], vocab_size: int) -> Tensor:
    """Returns which tokens the request's grammar allows, bool `(n, vocab)`: row i in place of token i
    of `token_ids`, given those before it. Behind an EOS, and behind what is none of its texts, it
    allows none."""
    allowed = torch.ones(len(token_ids), vocab_size, dtype=torch.bool)
    if request.grammar is None:
        return allowed
    known, ends = automaton(request.grammar), request.eos_token_ids
    state = known.start
    for row, token in zip(allowed, token_ids, strict=True):
        text = known.allowed(state) - ends
        tokens = text | ends if known.may_end(state) else text
        row.zero_()[[each for each in tokens if 0 <= each < vocab_size]] = True
        state = known.behind(state, token) if token in text else known.nowhere
    return allowed


def processed(logits: Tensor, request: Request, token_ids: tuple[int, ...]) -> Tensor:
    """Returns logits of what the request's grammar allows, after stages 1 to 5, float64 `(n, vocab)`:
    row i is what token i of `token_ids` is chosen from, given the tokens before it."""
    token_ids = token_ids[: len(logits)]
    past, values = past_of(request, token_ids, logits.shape[1]), logits.double()
    if request.grammar is not None:
        values = values.masked_fill(~in_grammar(request, token_ids, values.shape[1]), -torch.inf)
    for stage in STAGES.values():
        values = stage(values, request, past)
    return values


def amplification(asked: SamplingParams) -> float:
    """Returns how much larger the error of a processed logit may be than that of a logit, centred.

    A repetition penalty multiplies errors. It also tells logits apart from the same ones shifted by a
    constant, which is no error otherwise: such a shift is taken to be no larger than the other errors,
    which adds half as much again.
    """
    penalty = asked.repetition_penalty
    return 1.0 if penalty == 1.0 else 1.5 * max(penalty, 1 / penalty)


def kept(logits: Tensor, asked: SamplingParams, slack: float = 0.0) -> Tensor:
    """Returns which tokens may be drawn, bool `(n, vocab)`, from processed logits `(n, vocab)`. With
    `slack`, also those that could be if each logit were off by that much."""
    scaled = logits / asked.temperature
    off = 2 * slack / asked.temperature  # of a difference of two logits
    best = scaled.amax(dim=-1, keepdim=True)
    allowed = scaled > -torch.inf
    if asked.min_p > 0:
        allowed &= scaled - best >= torch.tensor(asked.min_p, dtype=torch.float64).log() - off
    if 0 < asked.top_k < scaled.shape[-1]:
        inside = scaled.masked_fill(~allowed, -torch.inf)
        allowed &= scaled >= inside.topk(asked.top_k, dim=-1).values[:, -1:] - off
    if asked.top_p < 1:
        before = _share_before(scaled.masked_fill(~allowed, -torch.inf), scaled + off)
        # Each share may be off by the factor exp(off), and so the sum of those before it.
        allowed &= before * torch.tensor(-off, dtype=torch.float64).exp() < asked.top_p
    return allowed


def _share_before(logits: Tensor, limits: Tensor) -> Tensor:
    """Returns the probability of all tokens whose logits, `(n, vocab)`, are above each of these limits,
    `(n, vocab)`: of those that stand before a token however rounding orders them."""
    ordered = logits.sort(dim=-1, descending=True).values
    sums = torch.nn.functional.pad(ordered.softmax(dim=-1).cumsum(dim=-1), (1, 0))
    num_before = torch.searchsorted(-ordered, -limits.contiguous())
    return sums.gather(-1, num_before)


def probabilities(logits: Tensor, asked: SamplingParams) -> Tensor:
    """Returns the probability of each token to be drawn, `(n, vocab)`, from processed logits."""
    allowed = kept(logits, asked)
    return (logits / asked.temperature).masked_fill(~allowed, -torch.inf).softmax(dim=-1)
