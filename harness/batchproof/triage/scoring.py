"""How far an engine's tokens are from the best ones, in float64, under a configuration.

The *regret* of a token is the best logit less its own, given the engine's own tokens before it. It is 0
for the best token; rounding of logits by e makes it 2e at most.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from batchproof.api import Completion, FinishReason, Request
from batchproof.checks.answers import structure_findings
from batchproof.findings.finding_text import headline
from batchproof.models.catalogue import ModelUnderTest, moved
from batchproof.oracle.choosing import amplification, processed, sampling_of
from batchproof.oracle.oracle import Prompt, teacher_forced
from batchproof.triage.configurations import AS_ASKED, Answered, Configuration

MOST_AT_ONCE = 4096  # tokens of one pass


@dataclass(frozen=True)
class Reading:
    """One answer under a configuration. `request` is as it was asked, `completion` as the configuration
    reads it. `regrets` holds one value for each token; `wrong` says what is wrong beside their choice,
    such as a cap."""

    request: Request
    completion: Completion
    regrets: tuple[float, ...] = ()
    wrong: str = ""
    scale: float = 1.0  # of the bound: penalties enlarge errors

    @property
    def worst(self) -> float:
        """The largest regret; infinite if something else is wrong."""
        return float("inf") if self.wrong else max(self.regrets, default=0.0) / self.scale

    def step_of(self, bound: float) -> int:
        """Returns the first step with a regret above the bound, else the last."""
        above = [step for step, each in enumerate(self.regrets) if each / self.scale > bound]
        return above[0] if above else len(self.completion.token_ids) - 1


class Scorer:
    """Scores answers against one model. Logits are kept: most answers come again."""

    def __init__(self, subject: ModelUnderTest) -> None:
        self.subject = subject
        self._subjects: dict[str, ModelUnderTest] = {"": subject}
        self._known: dict[tuple[str, Prompt], list[tuple[tuple[int, ...], Tensor]]] = {}

    def readings(self, configuration: Configuration, answers: Sequence[Answered]) -> list[Reading]:
        """Returns a reading for each answer, in order."""
        read = [configuration.of(each) for each in answers]
        scores = self.logits([each.tokens for each in read if self.is_scorable(each)], configuration)
        found = []
        for given, each in zip(answers, read, strict=True):
            is_longer = len(each.request.prompt_token_ids) > len(given.request.prompt_token_ids)
            if is_longer and each.completion.finish_reason is FinishReason.ERROR:  # it does not fit
                found.append(Reading(given.request, each.completion))
            else:
                found.append(replace(self._reading(each, scores), request=given.request))
        return found

    def is_scorable(self, answered: Answered) -> bool:
        """Returns whether the model can be fed the prompt with the answer."""
        prompt, tokens = answered.tokens
        is_short = len(prompt) + len(tokens) <= self.subject.context_len
        return is_short and bool(tokens) and all(0 <= t < self.subject.vocab_size for t in tokens)

    def _reading(self, answered: Answered, scores: Mapping[object, Tensor]) -> Reading:
        request, answer = answered.request, answered.completion
        logits = scores.get(answered.tokens)
        if slip := next(structure_findings(request, answer), None):
            return Reading(request, answer, wrong=headline(slip))
        if logits is None:
            return Reading(request, answer, wrong="it holds a token outside the vocabulary")
        asked = sampling_of(request)
        if asked.changes_logits:
            logits = processed(logits, request, answer.token_ids)
        chosen = logits.gather(-1, torch.tensor(answer.token_ids)[:, None])[:, 0]
        regrets = (logits.amax(dim=-1) - chosen).tolist()
        return Reading(request, answer, tuple(regrets), scale=amplification(asked))

    def logits(
        self, wanted: Sequence[tuple[Prompt, tuple[int, ...]]], configuration: Configuration = AS_ASKED
    ) -> dict[object, Tensor]:
        """Returns float64 logits `(len(token_ids), vocab)` of each prompt with an engine's tokens, of
        the model as the configuration has it."""
        name = configuration.model
        missing = [each for each in dict.fromkeys(wanted) if self._find(name, *each) is None]
        missing.sort(key=lambda each: len(each[0]) + len(each[1]))
        while missing:
            longest = len(missing[-1][0]) + len(missing[-1][1])
            share = missing[-max(1, MOST_AT_ONCE // longest) :]
            del missing[-len(share) :]
            scores = teacher_forced(self._altered(configuration), share)
            for each, fresh in zip(share, scores, strict=True):
                self._known.setdefault((name, each[0]), []).append((each[1], fresh))
        return {each: found for each in wanted if (found := self._find(name, *each)) is not None}

    def _find(self, name: str, prompt: Prompt, tokens: tuple[int, ...]) -> Tensor | None:
        """Returns known logits. Those of a step depend on the tokens before it alone."""
        num = len(tokens)
        for known, logits in self._known.get((name, prompt), ()):
            if len(known) >= num and known[: num - 1] == tokens[:-1]:
                return logits[:num]
        return None

    def _altered(self, configuration: Configuration) -> ModelUnderTest:
        """Returns the model with fields of its configuration changed, and the same weights."""
        if configuration.model not in self._subjects:
            exact = self.subject.exact
            config = copy.deepcopy(exact.config)
            for name, value in configuration.changes.items():
                setattr(config, name, value)
            with torch.random.fork_rng(devices=[]):
                model = moved(type(exact)(config), exact.device, exact.dtype)
            model.load_state_dict(exact.state_dict())
            model.set_attn_implementation(exact.config._attn_implementation)
            model.eval().requires_grad_(False)
            self._subjects[configuration.model] = replace(self.subject, model=model)
        return self._subjects[configuration.model]
