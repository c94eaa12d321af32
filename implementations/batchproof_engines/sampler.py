"""Chooses the tokens of a step by each request's own parameters; the stages are those of
`batchproof.decoding.sampling`."""

import os
from collections import Counter
from collections.abc import Sequence as Seq
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from batchproof.api import Completion, FinishReason, Request, SamplingParams, TokenLogprobs
from batchproof_engines.grammars import Matcher
from batchproof_engines.stopping import finish_reason

GREEDY = SamplingParams()
PromptLogprobs = list[TokenLogprobs | None]


class SampledRow(NamedTuple):
    """A sequence for which a token is to be chosen."""

    request: Request
    output_token_ids: Seq[int]
    matcher: Matcher | None = None  # of its grammar

    @property
    def is_plain(self) -> bool:
        """Whether its token is the argmax of the logits, and nothing else is asked for."""
        return self.request.sampling is None and self.matcher is None


class Choice(NamedTuple):
    """The token chosen for a row, and its logprobs, if they are asked for."""

    token_id: int
    logprobs: TokenLogprobs | None = None


class Sampler:
    """Has no state: a draw depends on the request's seed and the number of its tokens alone, so it is
    the same in any batch, and after a preemption."""

    def choose(self, logits: Tensor, rows: Seq[SampledRow]) -> list[Choice]:
        """Returns a choice for each of R rows, from logits (R, vocab)."""
        token_ids = logits.argmax(dim=-1).tolist()
        return [
            Choice(token_id) if row.is_plain else self._choice(logits, place, row)
            for place, (token_id, row) in enumerate(zip(token_ids, rows, strict=True))
        ]

    def _choice(self, logits: Tensor, place: int, row: SampledRow) -> Choice:
        asked = row.request.sampling or GREEDY
        raw = logits[place].float().cpu()
        is_changed = asked.changes_logits or row.matcher is not None
        processed = self.processed(raw.clone(), row) if is_changed else raw
        token_id = self.drawn(processed, row) if asked.temperature > 0 else int(processed.argmax())
        if asked.logprobs is None:
            return Choice(token_id)
        return Choice(token_id, self.logprobs(raw, token_id, asked.logprobs))

    def processed(self, logits: Tensor, row: SampledRow) -> Tensor:
        """Returns logits (vocab,) of what the grammar allows, after stages 1 to 5, in place."""
        asked, outputs = row.request.sampling or GREEDY, row.output_token_ids
        if row.matcher is not None:
            logits[~row.matcher.allowed(outputs)] = -torch.inf
        if asked.allowed_token_ids is not None:
            banned = torch.ones_like(logits, dtype=torch.bool)
            banned[sorted(asked.allowed_token_ids)] = False
            logits[banned] = -torch.inf
        if len(outputs) < asked.min_tokens:
            logits[[t for t in row.request.eos_token_ids if 0 <= t < len(logits)]] = -torch.inf
        for token_id, bias in asked.logit_bias:
            logits[token_id] += bias
        if asked.repetition_penalty != 1.0:
            seen = sorted({*row.request.prompt_token_ids, *outputs})
            values, penalty = logits[seen], asked.repetition_penalty
            logits[seen] = torch.where(values > 0, values / penalty, values * penalty)
        if asked.frequency_penalty or asked.presence_penalty:
            for token_id, count in Counter(outputs).items():
                logits[token_id] -= asked.frequency_penalty * count + asked.presence_penalty
        return logits

    def drawn(self, logits: Tensor, row: SampledRow) -> int:
        """Returns a token drawn from what stage 6 leaves of processed logits (vocab,).

        The highest of p / e, with e exponential, is distributed as p: the "exponential race".
        """
        asked = row.request.sampling or GREEDY
        kept = self.truncated(logits / asked.temperature, asked)
        noise = self.noise(asked.seed, len(row.output_token_ids), len(kept))
        return int((kept.softmax(dim=-1).numpy() / noise).argmax())

    def truncated(self, logits: Tensor, asked: SamplingParams) -> Tensor:
        """Returns logits (vocab,) with -inf for tokens that may not be drawn."""
        if asked.min_p > 0:
            shares = (logits - logits.max()).exp()
            logits = logits.masked_fill(shares < asked.min_p, -torch.inf)
        if 0 < asked.top_k < len(logits):
            least = logits.topk(asked.top_k).values[-1]
            logits = logits.masked_fill(logits < least, -torch.inf)
        if asked.top_p < 1:
            ordered, order = logits.softmax(dim=-1).sort(descending=True)
            before = ordered.cumsum(dim=-1) - ordered
            logits = logits.index_fill(0, order[before >= asked.top_p], -torch.inf)
        return logits

    def noise(self, seed: int | None, index: int, size: int) -> np.ndarray:
        """Returns exponential random numbers (size,) for the `index`-th token of a request."""
        fresh = int.from_bytes(os.urandom(16)) if seed is None else None
        key = fresh if fresh is not None else np.array([seed, index], dtype=np.uint64)
        drawn = np.random.Generator(np.random.Philox(key=key)).standard_exponential(size)
        return np.maximum(drawn, np.finfo(np.float64).tiny)

    def logprobs(self, logits: Tensor, token_id: int, num_top: int) -> TokenLogprobs:
        """Returns the logprobs of a token and of the likeliest, from raw logits (vocab,)."""
        (found,) = self.all_logprobs(logits[None], [token_id], num_top)
        return found

    def all_logprobs(self, logits: Tensor, token_ids: Seq[int], num_top: int) -> list[TokenLogprobs]:
        """Returns the same of a token for each row of logits (n, vocab)."""
        logprobs = logits.float().log_softmax(dim=-1)
        own = logprobs.gather(-1, torch.tensor(token_ids, device=logits.device)[:, None])
        ranks = (logprobs > own).sum(dim=-1) + 1
        values, ids = logprobs.topk(min(num_top, logits.shape[-1]))
        tops = zip(ids.tolist(), values.tolist(), strict=True)
        rows = zip(own[:, 0].tolist(), ranks.tolist(), tops, strict=True)
        return [TokenLogprobs(x, rank, tuple(zip(*top, strict=True))) for x, rank, top in rows]

    def score_prompt(
        self, found: PromptLogprobs, request: Request, context_len: int, logits: Tensor
    ) -> None:
        """Extends `found` by the logprobs of the prompt tokens that these raw logits (n, vocab)
        predict, if the request asks for them. The logits are those of its tokens from position
        `context_len` on; tokens that were scored before a preemption are skipped."""
        asked = request.sampling or GREEDY
        if asked.prompt_logprobs is None:
            return
        if not found:
            found.append(None)  # nothing stands before the first
        token_ids = request.prompt_token_ids[len(found) : context_len + len(logits) + 1]
        if token_ids:
            start = len(found) - 1 - context_len
            rows = logits[start : start + len(token_ids)]
            found += self.all_logprobs(rows, token_ids, asked.prompt_logprobs)


class Served(Protocol):
    """What an engine knows of a request that it has served."""

    request: Request
    finish_reason: FinishReason | None
    logprobs: list[TokenLogprobs]  # one a token, if the request asks for them
    prompt_logprobs: PromptLogprobs  # likewise


def completed(served: Served, token_ids: Seq[int], logits: Seq[Tensor]) -> Completion:
    """Returns the completion of a request that has ended. `logits`: (vocab,) of each token, if they are
    wanted."""
    assert served.finish_reason is not None, "a request is served to its end"
    return Completion(
        served.request.request_id,
        tuple(token_ids),
        served.finish_reason,
        logits=torch.stack([*logits]) if logits else None,
        logprobs=tuple(served.logprobs) or None,
        prompt_logprobs=tuple(served.prompt_logprobs) or None,
    )


class Answer:
    """What is chosen for a request, token by token, until it ends."""

    def __init__(self, request: Request, keeps_logits: bool) -> None:
        self.request = request
        self.keeps_logits = keeps_logits
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []  # one a token, if the request asks for them
        self.prompt_logprobs: PromptLogprobs = []  # likewise
        self.logits: list[Tensor] = []
        self.finish_reason: FinishReason | None = None

    def append(self, choice: Choice, logits: Tensor) -> None:
        """Appends a token that was chosen from these float32 logits (vocab,)."""
        self.token_ids.append(choice.token_id)
        if choice.logprobs is not None:
            self.logprobs.append(choice.logprobs)
        if self.keeps_logits:  # with a large vocabulary they take more memory than the KV cache
            self.logits.append(logits)
        self.finish_reason = finish_reason(self.request, self.token_ids)

    def completion(self) -> Completion:
        return completed(self, self.token_ids, self.logits)
