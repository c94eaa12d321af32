"""What the suite asks of an engine, and what the engine returns.

A `Workload` is a value: requests, limits, and for stepping engines when each request arrives and
which are aborted when. `batchproof.run.serving` gives it to an engine and returns an `Outcome`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import NamedTuple, Self

from batchproof.api import Completion, EngineConfig, FinishReason, Request, TokenEvent

DEFAULT_TIME_LIMIT_S = 60.0
SLEEP, WAKE, PAUSE, RESUME, CLEAR = "sleep", "wake", "pause", "resume", "clear"
UPDATE, UPDATE_IN_PART = "update", "update-in-part"
KINDS = (SLEEP, WAKE, PAUSE, RESUME, CLEAR, UPDATE, UPDATE_IN_PART)


class Interruption(NamedTuple):
    """What is done with the engine before a step of a workload, and before its requests are added; step
    0: before the first, so that none is in flight."""

    step: int
    kind: str  # one of `KINDS`
    weights: int = 0  # of an update: number of the variant whose weights the engine gets

    @property
    def is_update(self) -> bool:
        return self.kind in (UPDATE, UPDATE_IN_PART)


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests and the limits they are served under.

    `arrivals[i]` is the step before which request i is added (0: at the start); None: all at once
    through `generate`. `aborts` holds pairs of a request id and the step before which it is aborted.
    `adapters` holds pairs of a name and the number of the adapter that it stands for: the engine is
    made to have just these before it is served. `adapters_in_place`: one that takes a name's place is
    written to the folder of the one before. `weights` is the number of the variant whose weights the
    engine is made to have, 0 for the model itself, and `interruptions`, whose steps ascend, are done
    meanwhile.
    """

    requests: tuple[Request, ...]
    config: EngineConfig = EngineConfig()
    arrivals: tuple[int, ...] | None = None
    aborts: tuple[tuple[str, int], ...] = ()
    adapters: tuple[tuple[str, int], ...] = ()
    adapters_in_place: bool = False
    weights: int = 0
    interruptions: tuple[Interruption, ...] = ()

    @property
    def needs_stepping(self) -> bool:
        return self.arrivals is not None or bool(self.aborts) or self.is_interrupted

    @property
    def is_interrupted(self) -> bool:
        """Whether something is done with the engine while requests may run."""
        return any(each.step for each in self.interruptions)

    @property
    def has_lifecycle(self) -> bool:
        """Whether it depends on what is done with the engine besides requests."""
        return bool(self.weights or self.interruptions)

    @property
    def updates(self) -> tuple[Interruption, ...]:
        """What replaces the weights, from those that it begins with on."""
        return (Interruption(0, UPDATE, self.weights), *(i for i in self.interruptions if i.is_update))

    @property
    def may_overtake(self) -> bool:
        """Whether a request may have to wait until its adapter may run, or its grammar is compiled, and
        be overtaken meanwhile."""
        names = {each.adapter for each in self.requests} - {None}
        has_grammar = any(each.grammar for each in self.requests)
        return has_grammar or len(names) > (self.config.max_loras or 0)

    @property
    def num_tokens(self) -> int:
        """The sum of prompt lengths and caps, which bounds the work."""
        return sum(len(r.prompt_token_ids) + max(r.max_new_tokens, 0) for r in self.requests)

    @property
    def step_bound(self) -> int:
        """The number of steps within which every engine must finish (promise P10).

        One request at a time, one token a step, needs `num_tokens` steps. Preemption by recomputing
        can at worst repeat a request's tokens once for each token that an older one gains; pools
        here are small but hold the largest request, so eight times that is far beyond honest need.
        Behind each interruption all may be computed again, and none is while an engine stands still.
        """
        last = max((*(self.arrivals or ()), *(each.step for each in self.interruptions)), default=0)
        num_times = 8 * (1 + len(self.interruptions))
        return num_times * self.num_tokens + last + len(self.requests) + 16

    def variant_of(self, request: Request) -> int:
        """Returns the number of the adapter that the request names; 0 for none, or an unloaded one."""
        return dict(self.adapters).get(request.adapter or "", 0)

    def together(self) -> Self:
        """Returns the same requests, all at once through `generate`."""
        at_once = tuple(each for each in self.interruptions if not each.step)
        return replace(self, arrivals=None, aborts=(), interruptions=at_once)

    def with_requests(self, requests: Sequence[Request]) -> Self:
        return replace(self, requests=tuple(requests))

    def with_config(self, **changes: object) -> Self:
        """Returns the workload with changed fields of its limits. Raises `ConfigError`."""
        return replace(self, config=replace(self.config, **changes))  # type: ignore[arg-type]


def in_blocks(config: EngineConfig, multiple: int) -> EngineConfig:
    """Returns the limits with blocks whose size is a multiple, and a pool that holds as many tokens."""
    size, num_blocks = multiple * ceil(config.block_size / multiple), config.num_blocks
    if size == config.block_size:
        return config
    if num_blocks is not None:
        num_blocks = ceil(num_blocks * config.block_size / size)
    return replace(config, block_size=size, num_blocks=num_blocks)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an engine returned: one completion per request in order, and events if it was stepped."""

    completions: tuple[Completion, ...]
    events: tuple[tuple[int, TokenEvent], ...] = ()  # (step, event)
    trace_lens: tuple[int, ...] = ()  # records of the engine's trace before each step, if it has one


def cut(answer: Completion, length: int) -> Completion:
    """Returns the first tokens of an answer with their logits, as under a cap of `length`."""
    logits = None if answer.logits is None else answer.logits[:length]
    tokens, reason = answer.token_ids[:length], FinishReason.LENGTH
    return replace(answer, token_ids=tokens, finish_reason=reason, logits=logits)


def assemble(request_id: str, events: Sequence[TokenEvent], was_aborted: bool = False) -> Completion:
    """Returns the completion of a request, from its events. One without a last event is an ERROR
    that says so."""
    own = [event for event in events if event.request_id == request_id]
    token_ids = tuple(event.token_id for event in own if event.token_id is not None)
    logprobs = tuple(event.logprobs for event in own if event.logprobs is not None) or None
    ends = [event for event in own if event.finish_reason is not None]
    if ends:
        assert ends[-1].finish_reason is not None
        reason, error = ends[-1].finish_reason, ends[-1].error
        return Completion(request_id, token_ids, reason, error, logprobs=logprobs)
    if was_aborted:
        return Completion(request_id, token_ids, FinishReason.ABORTED, logprobs=logprobs)
    return Completion(
        request_id, token_ids, FinishReason.ERROR, "no event ends it, and has_unfinished is false"
    )
