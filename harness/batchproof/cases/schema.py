"""A curated case as frozen values: what `batchproof.cases.files` reads from YAML.

A case names no model, so prompts, caps and EOS ids can be symbolic ("a prompt four tokens short of the
context", "the last token of the right answer"). `batchproof.cases.runner` makes them concrete for one
model. `cases/README.md` describes the YAML.
"""

from collections.abc import Set
from dataclasses import dataclass, fields

from batchproof.api import Capability, EngineConfig, FinishReason, Grammar, SamplingParams
from batchproof.decoding.sampling import TakenFields
from batchproof.requirements.promises import Promise
from batchproof.validation.source_lines import SourceLine

EVENTS = ("preemption", "chunked", "slot_reuse", "mixed_step", "prefix_hit", "acceptance", "rejection")


@dataclass(frozen=True, slots=True)
class BeyondContext:
    """As many tokens as end `offset` behind the context, so it is usually negative."""

    offset: int


@dataclass(frozen=True, slots=True)
class RandomPrompt:
    """Pseudo-random known ids, the same in every run."""

    length: int | BeyondContext
    seed: int


Prompt = str | tuple[int, ...] | RandomPrompt
"""A text that the model encodes, ids as they are, unknown ones included, or the above."""


@dataclass(frozen=True, slots=True)
class EosRef:
    """A token of the right answer ("ref"), of the prompt, or of the prompt but not of the answer
    ("prompt-only"). `index` None: the answer's last token, at the cap."""

    source: str
    index: int | None

    def __str__(self) -> str:
        return f"{self.source}[{'last' if self.index is None else self.index}]"


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """One request, possibly symbolic, and what it must come to: `finish` and `num_tokens` of None leave
    that to the oracle."""

    place: SourceLine
    request_id: str
    prompt: Prompt
    cap: int | BeyondContext
    eos: tuple[int | EosRef, ...] = ()
    arrive: int | None = None
    aborts: tuple[int, ...] = ()
    sampling: SamplingParams | None = None
    grammar: Grammar | None = None
    finish: FinishReason | None = None
    num_tokens: int | None = None

    @property
    def is_bad(self) -> bool:
        return self.finish is FinishReason.ERROR


Call = tuple[RequestSpec, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """One curated workload, and the bug it is a regression test for. If events, of `EVENTS`, do not
    show in the trace, the case has proved nothing."""

    place: SourceLine
    name: str
    promise: Promise
    why: str
    calls: tuple[Call, ...]
    link: str | None = None
    declared_needs: tuple[Capability, ...] = ()
    models: tuple[str, ...] = ()  # empty: all
    config: EngineConfig = EngineConfig()
    abort_unknown: tuple[tuple[str, int], ...] = ()  # ids that no request has, step before which
    events: frozenset[str] = frozenset()
    max_steps: int | None = None

    @property
    def requests(self) -> Call:
        return tuple(spec for call in self.calls for spec in call)

    @property
    def needs_stepping(self) -> bool:
        """Whether arrivals or aborts require `add` and `step`."""
        return bool(self.abort_unknown) or any(
            spec.arrive is not None or spec.aborts for spec in self.requests
        )

    def lacking(self, taken: Set[str]) -> list[str]:
        """Returns the fields of `SamplingParams`, in order, of which good requests have values that an
        engine with these ones does not take, or bad ones values that mean something to it."""
        asked = [(spec.sampling, spec.is_bad) for spec in self.requests if spec.sampling]
        missed = {name for each, is_bad in asked if not is_bad for name in each.changed} - taken
        if isinstance(taken, TakenFields):
            for each, is_bad in asked:
                missed |= taken.documented(each) if is_bad else taken.moved(each)
        return [each.name for each in fields(SamplingParams) if each.name in missed]

    @property
    def needs(self) -> tuple[str, ...]:
        """Capabilities: the declared ones, and those that requests, limits and expectations imply."""
        prompts = [spec.prompt for spec in self.requests]
        lengths = [len(each) for each in prompts if isinstance(each, tuple)]
        drawn = (each.length for each in prompts if isinstance(each, RandomPrompt))
        lengths += (each for each in drawn if isinstance(each, int))
        is_above_budget = max(lengths, default=0) > self.config.max_num_batched_tokens
        implied = {
            Capability.STEPPING: self.needs_stepping,
            Capability.TRACING: bool(self.events) or self.max_steps is not None,
            Capability.PREEMPTION: "preemption" in self.events,
            Capability.CHUNKED_PREFILL: "chunked" in self.events or is_above_budget,
            Capability.SCHEDULING: "mixed_step" in self.events,
            Capability.PREFIX_CACHING: "prefix_hit" in self.events,
            Capability.STRUCTURED: any(spec.grammar for spec in self.requests),
            Capability.SPECULATION: self.config.num_speculative_tokens is not None,
        }
        return tuple(c.value for c in Capability if c in self.declared_needs or implied.get(c, False))
