"""The right answer, and how far rounding may carry an honest engine from it.

Three sources; what is asked for again is kept:

* `answer`: per-prompt greedy generation by the reference engine, in the precision under test, with
  the logits and the top-2 margin of every step;
* `score`: one teacher-forced float64 pass over a prompt and *an engine's own* tokens, so that after
  a flip the engine's further tokens are still scored;
* `error`: E, the worst logit error of the reference itself against float64 of the same weights. All
  tolerances are multiples of it; none is guessed. `least_error` is a lower bound of it that takes a
  small part of the time, and `errors` measures it on the very input that is judged, if need be.

Logits are compared centred over the vocabulary, because a constant added to all of them changes
nothing.
"""

import copy
import inspect
import random
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Self

import torch
from torch import Tensor

from batchproof.api import EngineConfig, EngineFactory, FinishReason, Request
from batchproof.errors import OracleError
from batchproof.models.catalogue import ModelUnderTest
from batchproof.oracle.choosing import is_plain, num_until_end, processed, sampling_of
from batchproof.oracle.precision import AS_SERVED, Precision
from batchproof.oracle.rounding import coarse
from batchproof.statistics import share_bound

LEAST_SHARE = 0.1  # of the steps of a calibration
SHARE_RISK = 1e-6  # chance at which the true share is larger

Calibration = tuple[Sequence[int], Tensor, Tensor]
"""The reference's tokens of one answer, its logits and the exact ones, both `(num_tokens, vocab)`,
centred, in float64."""


@dataclass(frozen=True, slots=True)
class ErrorUnit:
    """E, over `num_steps` steps."""

    max_abs: float
    rms: float  # over the vocabulary, at the worst step: an answer may have only one
    num_steps: int
    near_tie_share: float  # at most this share of steps has a margin within 2 kappa E, so may flip

    @classmethod
    def measured(cls, answers: Sequence[Calibration], kappa: float) -> Self:
        """Returns E of these answers; `kappa` is the bound on errors in units of E."""
        error = torch.cat([logits - exact for _, logits, exact in answers])
        exact = torch.cat([exact for _, _, exact in answers])
        margin = margins(exact)
        max_abs = error.abs().max().item()
        bound = 2 * kappa * max_abs
        return cls(
            max_abs=max_abs,
            rms=error.pow(2).mean(dim=-1).max().sqrt().item(),
            num_steps=len(margin),
            near_tie_share=_share_within(bound, margin),
        )


def _share_within(bound: float, margins: Tensor) -> float:
    """Returns an upper bound of the share of all steps whose margin is at most `bound`: few are that
    close, so it counts the closest tenth and scales down by the width (docs/near_ties.md)."""
    num_within = max(int((margins <= bound).sum()), ceil(LEAST_SHARE * len(margins)))
    width = max(bound, margins.sort().values[num_within - 1].item())
    return share_bound(num_within, len(margins), SHARE_RISK) * bound / width


# Measured for correct packed and padded engines: up to 2.8 E in float32, 1.5 E (2.4 on a chaotic
# model) in bfloat16, while the weakest observable fault stood at 624 E in float32.
KAPPA = {"float64": 8.0, "float32": 8.0, "bfloat16": 3.0, "float16": 3.0}
KAPPA_QUANTIZED = 3.0  # of quantised weights or caches

NUM_KEPT_LOGITS = 1 << 26  # floats
NUM_CALIBRATION_PROMPTS = 12
NUM_FIRST_PROMPTS = 2  # of those, for a lower bound of E
NUM_CALIBRATION_STEPS = 24

Prompt = tuple[int, ...]
Scored = tuple[Prompt, tuple[int, ...]]  # a prompt and an engine's tokens


class RecentScores:
    """Logits by what was scored. It drops the least recently used once all together are more than
    `NUM_KEPT_LOGITS`: those of a real vocabulary are large. The newest always stay."""

    def __init__(self) -> None:
        self._num_kept = 0
        self._items: OrderedDict[Scored, Tensor] = OrderedDict()

    def get(self, key: Scored) -> Tensor | None:
        if key in self._items:
            self._items.move_to_end(key)
        return self._items.get(key)

    def put(self, key: Scored, value: Tensor) -> None:
        self._items[key] = value
        self._num_kept += value.numel()
        while self._num_kept > NUM_KEPT_LOGITS and len(self._items) > 1:
            self._num_kept -= self._items.popitem(last=False)[1].numel()


@dataclass(frozen=True, slots=True)
class Answer:
    """A greedy continuation without EOS; `logits` is float32 `(len(token_ids), vocab)`."""

    token_ids: tuple[int, ...]
    logits: Tensor


class Oracle:
    """Right answers for one model under test. Methods raise `OracleError` where there is none."""

    def __init__(
        self, subject: ModelUnderTest, reference: EngineFactory, precision: Precision = AS_SERVED
    ) -> None:
        """`reference` builds the engine whose per-prompt answers are right; `precision` is that of the
        engine under test."""
        self.subject = subject
        self.precision = precision
        self._adapters: Mapping[str, int] = {}  # by name, the number of the variant
        self._variants: dict[int, Oracle] = {}
        self._factory = reference
        self._reference = reference(coarse(subject.model, precision), EngineConfig(return_logits=True))
        self._scores = RecentScores()
        self._calibrated: list[Calibration] = []
        self._errors: dict[int, ErrorUnit] = {}  # by the number of prompts
        self._processed: dict[Request, tuple[int, ...]] = {}
        self._right: dict[Prompt, tuple[int, ...]] = {}  # tokens are small, so all are kept

    def under(self, adapters: Iterable[tuple[str, int]], weights: int = 0) -> "Oracle":
        """Returns the oracle of the same model for requests that may name these adapters, pairs of a
        name and the number of a variant; or, with the weights of a variant, that of the variant."""
        named = copy.copy(self._of_variant(weights))  # it shares all that is computed
        named._adapters = dict(adapters)
        return named

    def knows(self, request: Request) -> bool:
        """Returns whether the adapter that the request names, if any, is one of these."""
        return request.adapter is None or request.adapter in self._adapters

    def of(self, request: Request) -> "Oracle":
        """Returns the oracle of the model under the request's own adapter."""
        return self if request.adapter is None else self._of_variant(self._adapters[request.adapter])

    def _of_variant(self, number: int) -> "Oracle":
        if not number:
            return self
        if number not in self._variants:
            merged = self.subject.variant(number)
            self._variants[number] = Oracle(merged, self._factory, self.precision)
        return self._variants[number]

    @property
    def is_calibrated(self) -> bool:
        return NUM_CALIBRATION_PROMPTS in self._errors

    @property
    def kappa(self) -> float:
        """The bound on logit errors in units of E."""
        kappa = KAPPA[self.precision.of(self.subject)]
        return min(kappa, KAPPA_QUANTIZED) if self.precision.is_quantized else kappa

    @property
    def is_exact(self) -> bool:
        """Whether tokens are right or wrong without near-ties: with an integer oracle, or in float32,
        where near-ties are so rare that a few tokens contain none."""
        return self.subject.oracle is not None or (
            self.precision.of(self.subject) == "float32" and not self.precision.is_quantized
        )

    def answer(self, prompt: Prompt, max_new_tokens: int) -> Answer:
        """Returns the first `max_new_tokens` greedy tokens of the reference after the prompt, EOS
        ignored. Raises `OracleError` if there is no such answer."""
        with _answering("the reference", prompt, max_new_tokens):
            (completion,) = self._reference.generate([Request("reference", prompt, max_new_tokens)])
            if completion.error is not None:
                raise OracleError(f"refused it: {completion.error}")
            if completion.logits is None:
                raise OracleError("gave no logits")
            self._require_tokens(completion.token_ids, max_new_tokens)
            return Answer(completion.token_ids, completion.logits)

    def right_tokens(
        self, prompt: Prompt, max_new_tokens: int, given: tuple[int, ...] = ()
    ) -> tuple[int, ...]:
        """Returns the same tokens from the strictest source: integer arithmetic for a constructed
        model, else the reference, which need not generate so many `given` ones if they are beyond
        doubt. Raises `OracleError`."""
        known, oracle = self._right.get(prompt, ()), self.subject.oracle
        if len(known) < max_new_tokens and oracle is None:
            is_sure = self._is_beyond_doubt(prompt, given)
            known = given if is_sure else self.answer(prompt, max_new_tokens).token_ids
        elif oracle is not None and len(known) < max_new_tokens:
            with _answering("its integer arithmetic", prompt, max_new_tokens):
                known = tuple(oracle(prompt, max_new_tokens))
                self._require_tokens(known, max_new_tokens)
        self._right[prompt] = known
        return known[:max_new_tokens]

    def _require_tokens(self, token_ids: Sequence[int], max_new_tokens: int) -> None:
        if len(token_ids) < max_new_tokens:
            raise OracleError(f"gave {len(token_ids)} tokens")
        strangers = [token for token in token_ids if not 0 <= token < self.subject.vocab_size]
        if strangers:
            raise OracleError(f"gave token {strangers[0]}, which is none of the vocabulary")

    def choices(self, request: Request) -> tuple[int, ...]:
        """Returns `max_new_tokens` tokens as the request wants them chosen, whatever ends the answer:
        `right_tokens`, or, where its parameters change logits, the argmax in float64 of what they make
        of them. A grammar allows nothing behind an EOS, so there they end. Raises `OracleError`, also
        for a request whose tokens are drawn."""
        if request.adapter is not None:
            return self.of(request).choices(replace(request, adapter=None))
        asked = sampling_of(request)
        if asked.temperature > 0:
            raise OracleError(
                f"request {request.request_id!r} has no right answer: its tokens are drawn"
            )
        if is_plain(request):
            return self.right_tokens(request.prompt_token_ids, request.max_new_tokens)
        key = replace(request, request_id="", max_new_tokens=1)
        if not asked.min_tokens and request.grammar is None:  # no EOS changes a logit
            key = replace(key, eos_token_ids=frozenset())
        tokens, prompt = self._processed.get(key, ()), request.prompt_token_ids
        with _answering("the model in float64", prompt, request.max_new_tokens):
            while len(tokens) < request.max_new_tokens and not self._is_whole(request, tokens):
                fed = (*tokens, 0)  # the last is not looked at
                (logits,) = teacher_forced(self.subject, [(prompt, fed)])
                tokens = (*tokens, int(processed(logits, request, fed)[-1].argmax()))
        self._processed[key] = tokens
        return tokens[: request.max_new_tokens]

    def _is_whole(self, request: Request, token_ids: tuple[int, ...]) -> bool:
        """Returns whether these tokens end with the EOS behind a text of the request's grammar."""
        return request.grammar is not None and not request.eos_token_ids.isdisjoint(token_ids[-1:])

    def expected(self, request: Request) -> tuple[tuple[int, ...], FinishReason]:
        """Returns tokens and finish reason of a good request: `choices`, cut where the answer ends.
        Raises `OracleError`."""
        return cut(self.choices(request), request)

    def score(self, prompt: Prompt, token_ids: tuple[int, ...]) -> Tensor:
        """Returns float64 logits `(len(token_ids), vocab)`: row i is what token i should be chosen
        from, given the tokens before it."""
        return self.score_all([(prompt, token_ids)])[0]

    def score_all(self, wanted: Sequence[Scored]) -> list[Tensor]:
        """Returns `score` of several answers; those not known yet share one pass."""
        found = {each: self._scores.get(each) for each in wanted}
        missing = [each for each, score in found.items() if score is None]
        if missing:
            for each, fresh in zip(missing, teacher_forced(self.subject, missing), strict=True):
                self._scores.put(each, fresh)
                found[each] = fresh
        return [score for each in wanted if (score := found[each]) is not None]

    def is_best_scored(self, request: Request, num_tokens: int) -> bool:
        """Returns whether float64 judges so many tokens of an answer: where parameters or a grammar
        choose them, or where it spares a small model in float32 their generation."""
        if request.sampling or request.grammar:
            return True
        is_quick = self.subject.is_embedded and self.subject.oracle is None and self.is_exact
        return is_quick and len(self._right.get(request.prompt_token_ids, ())) < num_tokens

    def _is_beyond_doubt(self, prompt: Prompt, token_ids: tuple[int, ...]) -> bool:
        """Returns whether float64 has scored these tokens, and each leads by more than rounding
        explains: then the reference would generate the same."""
        exact = self._scores.get((prompt, token_ids))
        if exact is None:
            return False
        leads = margins(exact) > 2 * self.kappa * self.least_error.max_abs
        return bool((leads & (exact.argmax(dim=-1) == torch.tensor(token_ids))).all())

    @property
    def error(self) -> ErrorUnit:
        """E of this model, dtype and device, measured on generated prompts with a fixed seed."""
        return self._error_on(NUM_CALIBRATION_PROMPTS)

    @property
    def logit_bound(self) -> float:
        """The most that rounding explains of a logit, kappa E; of the difference of two, twice that."""
        return self.kappa * self.error.max_abs

    def errors(self, prompt: Prompt, token_ids: tuple[int, ...]) -> Iterator[ErrorUnit]:
        """Yields ever better measures of E, none smaller than the one before: `least_error`, `error`,
        and that with this answer added, if the reference gives it too. Some inputs amplify rounding
        by far more than any that was drawn."""
        yield self.least_error
        yield self.error
        answer = self.answer(prompt, len(token_ids))
        if answer.token_ids == token_ids:
            calibration = token_ids, centred(answer.logits), centred(self.score(prompt, token_ids))
            known = self._calibrations(NUM_CALIBRATION_PROMPTS)
            yield ErrorUnit.measured([*known, calibration], self.kappa)

    @property
    def least_error(self) -> ErrorUnit:
        """E measured on the first prompts only: a lower bound of `error`, so an answer within kappa of
        it needs no full calibration."""
        return self._error_on(NUM_FIRST_PROMPTS)

    def _error_on(self, num: int) -> ErrorUnit:
        if num not in self._errors:
            self._errors[num] = ErrorUnit.measured(self._calibrations(num), self.kappa)
        return self._errors[num]

    def _calibrations(self, num: int) -> list[Calibration]:
        """Returns the answers to so many prompts of a fixed seed; those not known yet are computed."""
        rng, vocab_size = random.Random(0), self.subject.vocab_size
        longest = min(64, self.subject.context_len - NUM_CALIBRATION_STEPS)
        for place in range(num):
            prompt = tuple(rng.randrange(vocab_size) for _ in range(rng.randint(1, longest)))
            if place == len(self._calibrated):
                answer = self.answer(prompt, NUM_CALIBRATION_STEPS)
                (exact,) = teacher_forced(self.subject, [(prompt, answer.token_ids)])
                calibration = answer.token_ids, centred(answer.logits), centred(exact)
                self._calibrated.append(calibration)
        return self._calibrated[:num]


@contextmanager
def _answering(who: str, prompt: Prompt, max_new_tokens: int) -> Iterator[None]:
    """Turns any error of the block into an `OracleError`: no engine under test is at fault."""
    try:
        yield
    except Exception as error:
        what = error if isinstance(error, OracleError) else f"raised {type(error).__name__}: {error}"
        raise OracleError(
            f"no right answer of {max_new_tokens} tokens to the prompt of {len(prompt)} tokens that "
            f"starts {list(prompt[:8])}: {who} {what}"
        ) from error


def cut(token_ids: tuple[int, ...], request: Request) -> tuple[tuple[int, ...], FinishReason]:
    """Returns a continuation up to its first EOS or stop sequence, and the finish reason, LENGTH
    without one."""
    end = num_until_end(request, token_ids)
    return token_ids[:end], FinishReason.LENGTH if end is None else FinishReason.STOP


@torch.inference_mode()
def teacher_forced(subject: ModelUnderTest, answers: Sequence[Scored]) -> list[Tensor]:
    """Runs one float64 pass, without cache, over prompts and their tokens.

    Returns for each answer the logits `(len(token_ids), vocab)` its tokens should be chosen from, on
    the CPU. Shorter rows are padded at the end, where causal attention does not look.
    """
    model: Any = subject.scorer
    rows = [torch.tensor((*prompt, *token_ids[:-1])) for prompt, token_ids in answers]
    input_ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(model.device)
    num_read = input_ids.shape[1] + 1 - min(len(prompt) for prompt, _ in answers)
    takes = inspect.signature(subject.model.forward).parameters
    last = {"logits_to_keep": num_read} if "logits_to_keep" in takes else {}
    logits = model(input_ids=input_ids, use_cache=False, **last).logits
    first = logits.shape[1] - input_ids.shape[1] - 1  # a vocabulary is large: no other row is kept
    return [
        logits[index, first + len(prompt) : first + len(prompt) + len(token_ids)].to("cpu", copy=True)
        for index, (prompt, token_ids) in enumerate(answers)
    ]


def largest_move(old: Tensor, new: Tensor) -> float:
    """Returns by how much centred logits of one shape differ at most."""
    return float((centred(old) - centred(new)).abs().max())


def margins(logits: Tensor) -> Tensor:
    """Returns the best logit less the second of each row of `(..., vocab)`, `(...)`."""
    best, second = logits.topk(2).values.unbind(-1)
    return best - second


def centred(logits: Tensor) -> Tensor:
    """Returns float64 logits on the CPU, minus their mean over the vocabulary; the shape stays."""
    logits = logits.detach().cpu().double()
    return logits - logits.mean(dim=-1, keepdim=True)
