"""Grammars that are another row's, a step late, left behind by drafts or preemptions, or never read."""

from collections.abc import Sequence as Seq
from typing import Any

import torch
from torch import Tensor

from batchproof.api import Grammar, Request
from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_engines.grammars import Grammars, Matcher
from batchproof_engines.ragged.scheduler import Scheduler, Sequence
from batchproof_engines.ragged_paged.engine import RaggedPagedEngine
from batchproof_engines.sampler import Choice, SampledRow, Sampler


@planted(Promise.P22, Cause.GRAMMAR, "tenstorrent/vllm-tt-plugin#56")
class MasksGoToTheFirstRows(Sampler):
    """The masks of a step, of the requests with a grammar alone, are applied to as many of its rows,
    from the first on."""

    def choose(self, logits: Tensor, rows: Seq[SampledRow]) -> list[Choice]:
        masks = [row.matcher.allowed(row.output_token_ids) for row in rows if row.matcher is not None]
        masked = logits.clone()
        for place, mask in enumerate(masks):
            masked[place, ~mask] = -torch.inf
        return super().choose(masked, [row._replace(matcher=None) for row in rows])


@planted(Promise.P22, Cause.GRAMMAR, "vllm-project/vllm-gaudi#1200")
class PlainRowsMayHaveNoToken(Sampler):
    """In a step with a grammar, the masks of requests without one are left at zero: no token is
    allowed, and the first id wins."""

    def choose(self, logits: Tensor, rows: Seq[SampledRow]) -> list[Choice]:
        chosen = super().choose(logits, rows)
        if not any(row.matcher for row in rows):
            return chosen
        pairs = zip(rows, chosen, strict=True)
        return [choice if row.matcher else choice._replace(token_id=0) for row, choice in pairs]


@planted(Promise.P22, Cause.GRAMMAR, "vllm-project/vllm#13433")
class GrammarsHoldForTheFirstTokenAlone(Matcher):
    """What a grammar allows is asked while the request is new, and never once it runs."""

    def allowed(self, output_token_ids: Seq[int]) -> Tensor:
        return super().allowed(()) if not output_token_ids else torch.ones(self.vocab_size).bool()


@planted(Promise.P22, Cause.GRAMMAR, "sgl-project/sglang#40458")
class GrammarIsAStepBehind(Matcher):
    """A mask is built before the newest token is accepted."""

    def allowed(self, output_token_ids: Seq[int]) -> Tensor:
        return super().allowed(output_token_ids[:-1])


@planted(Promise.P22, Cause.GRAMMAR, "anthony-chaudhary/fak#5271")
class RejectedDraftsStayInTheGrammar(Matcher):
    """A rejected draft that the grammar allows is never taken back: the grammar goes on behind it."""

    def roll_back(self, num_tokens: int) -> None:
        self.read = self.read[: len(self.read) - num_tokens]


@planted(Promise.P22, Cause.GRAMMAR, "vllm-project/vllm#54437")
class ChoicesBehindDraftsAreFree(RaggedPagedEngine):
    """Of a row with drafts the first choice follows the grammar, and those behind drafts do not."""

    def _verifying(self, sequence: Sequence, logits: Tensor) -> list[Choice]:
        free = map(Choice, logits[1:].argmax(dim=-1).tolist())
        return [*super()._verifying(sequence, logits)[:1], *free]


class _Resumed(Matcher):
    def __init__(self, interrupted: Matcher, num_known: int) -> None:
        vars(self).update(vars(interrupted))
        self.roll_back(len(self.read))
        self.num_known = num_known

    def allowed(self, output_token_ids: Seq[int]) -> Tensor:
        return super().allowed(output_token_ids[self.num_known :])


@planted(Promise.P22, Cause.GRAMMAR, "vllm-project/vllm#31955")
class AGrammarStartsOverWhenResumed(Scheduler):
    """A preempted request comes back with its grammar at the beginning of a text."""

    def _preempt_youngest(self) -> str:
        victim = self.running[-1]
        if victim.matcher is not None:
            victim.matcher = _Resumed(victim.matcher, len(victim.output_token_ids))
        return super()._preempt_youngest()


@planted(Promise.P22, Cause.GRAMMAR, "jundot/omlx#3078")
class ATextEndsWhereItMay(Matcher):
    """Where a text may end, nothing but its end is allowed, though more could follow."""

    def allowed(self, output_token_ids: Seq[int]) -> Tensor:
        allowed = super().allowed(output_token_ids)
        if bool(allowed[self.eos].any()):
            allowed[[token for token in range(self.vocab_size) if token not in self.eos]] = False
        return allowed


@planted(Promise.P22, Cause.GRAMMAR, "sgl-project/sglang#15373")
class AWholeTextIsNotMasked(Matcher):
    """A grammar that has come to its end is not asked: any token may follow a whole text."""

    def allowed(self, output_token_ids: Seq[int]) -> Tensor:
        allowed = super().allowed(output_token_ids)
        is_over = int(allowed.sum()) == int(allowed[self.eos].sum())
        return torch.ones_like(allowed) if is_over else allowed


@planted(Promise.P22, Cause.GRAMMAR, "vllm-project/vllm#49227")
class OneEosIsHeldBack(Matcher):
    """The grammar knows of one EOS id: the others may come within a text."""

    def allowed(self, output_token_ids: Seq[int]) -> Tensor:
        allowed = super().allowed(output_token_ids)
        allowed[sorted(self.eos)[1:]] = True
        return allowed


@planted(Promise.P22, Cause.GRAMMAR, "ModelTC/LightLLM#933")
class SchemasAreCachedUnderOneKey(Grammars):
    """The first JSON schema that is compiled serves all later requests with a schema."""

    _first: Grammar | None = None

    def compiled(self, grammar: Grammar) -> Any:
        made = super().compiled(grammar)
        if grammar.kind == "json_schema":
            self._first = self._first or grammar
            made = super().compiled(self._first)
        return made


@planted(Promise.P22, Cause.CRASH, "vllm-project/vllm#43920")
class AMalformedGrammarIsNotLookedAt(Grammars):
    """A grammar is compiled when its request is served, outside of what refuses bad ones."""

    def refusal(self, request: Request) -> str | None:  # noqa: ARG002
        return None
