"""Workloads in which features meet: a covering design over `dimensions`.

A workload takes one value of each dimension, such as `drafts=wrong` and `pool=tight`.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import cache, partial
from itertools import chain, combinations, product

from covertable import make

from batchproof.api import Capability, EngineConfig, Request
from batchproof.decoding.grammar import TakenGrammars
from batchproof.decoding.sampling import TakenFields
from batchproof.generators.dimensions import DIMENSIONS, FILE, LAST, NAMES, OWNER, PLAIN, Plan
from batchproof.generators.target import Target
from batchproof.models.catalogue import ModelUnderTest
from batchproof.workload.workloads import Workload

Values = Mapping[str, str]  # dimension -> value
Choices = Mapping[str, Sequence[str]]  # dimension -> its values
Value = tuple[str, str]  # a dimension and one of its values
Meeting = tuple[Value, ...]  # values of different dimensions, sorted
ANY_GRAMMARS = TakenGrammars()


def _but_plain(name: str) -> list[Value]:
    return [(name, value) for value in DIMENSIONS[name].values if value != PLAIN[name]]


def _excluded(pair: Values) -> Iterator[Meeting]:
    """Yields the meetings that a pair of the file stands for."""
    for name, value in pair.items():
        assert value in (*DIMENSIONS[name].values, "any"), f"excluded: {name} has no value {value!r}"
    ways = (_but_plain(name) if value == "any" else [(name, value)] for name, value in pair.items())
    return product(*ways)


EXCLUDED: frozenset[Meeting] = frozenset(chain.from_iterable(map(_excluded, FILE["excluded"])))


def choices_for(
    capabilities: AbstractSet[Capability],
    fields: AbstractSet[str],
    subject: ModelUnderTest | None = None,
    grammars: TakenGrammars = ANY_GRAMMARS,
) -> dict[str, list[str]]:
    """Returns the values of each dimension that an engine can be asked for on this model, or on one
    that has all. One without a trace need not declare what a config alone asks for. The `TEXTS` are
    asked for where it takes all grammars: one that takes few may lack theirs."""
    offered = {*(each.value for each in capabilities), *fields}
    if subject is not None and not subject.num_variants:
        offered -= {Capability.ADAPTERS, Capability.WEIGHT_UPDATES}
    if grammars != ANY_GRAMMARS or (subject is not None and not subject.has_texts):
        offered -= {Capability.STRUCTURED}
    if Capability.TRACING not in capabilities:
        offered |= {Capability.PREEMPTION, Capability.PREFIX_CACHING}
    return {
        name: [value for value, needs in each.values.items() if offered.issuperset(needs)]
        for name, each in DIMENSIONS.items()
    }


def excluded_for(fields: AbstractSet[str]) -> frozenset[Meeting]:
    """Returns what cannot meet on an engine that takes these fields: besides `EXCLUDED`, drafts and
    what it does not take beside them."""
    if not isinstance(fields, TakenFields):
        return EXCLUDED
    apart = fields - fields.beside_drafts()
    missed = [
        (name, value)
        for name, each in DIMENSIONS.items()
        for value, needs in each.values.items()
        if not apart.isdisjoint(needs)
    ]
    return EXCLUDED | {(draft, value) for draft in _but_plain("drafts") for value in missed}


def meetings(
    choices: Choices, strength: int, excluded: AbstractSet[Meeting] = EXCLUDED
) -> Iterator[Meeting]:
    """Yields every combination of values of `strength` dimensions that can occur."""
    every = sorted((name, value) for name, values in choices.items() for value in values)
    for each in combinations(every, strength):
        are_different = len({name for name, _ in each}) == strength
        if are_different and not any(pair in excluded for pair in combinations(each, 2)):
            yield each


def covering(
    choices: Choices, seed: int, strength: int = 2, excluded: AbstractSet[Meeting] = EXCLUDED
) -> tuple[Values, ...]:
    """Returns combinations of all dimensions that hold every meeting of `strength` values."""
    named = tuple((name, tuple(each)) for name, each in choices.items())
    return _covering(named, seed, strength, frozenset(excluded))


@cache
def _covering(
    choices: tuple[tuple[str, tuple[str, ...]], ...],
    seed: int,
    strength: int,
    excluded: frozenset[Meeting],
) -> tuple[Values, ...]:
    asked = {name: [*values] for name, values in choices}
    # It requires no dimension, as covertable would look ahead for each, for ten times as long: with
    # the plain values any row can be completed.
    possible = {"operator": "fn", "requires": [], "evaluate": partial(_is_possible, excluded)}
    return tuple(make(asked, strength=strength, salt=str(seed), constraints=[possible]))


def _is_possible(excluded: AbstractSet[Meeting], row: Values) -> bool | None:
    """Returns False if values of a row in the making cannot meet; else None, as more are to come."""
    return None if excluded.isdisjoint(combinations(sorted(row.items()), 2)) else False


def calls_of(
    values: Values, target: Target, seed: int, block_sizes: Sequence[int]
) -> tuple[Workload, Workload]:
    """Returns two calls for one engine: the workload, and its requests once more, with the same ids and
    without an abort. With `prefixes=turn` one of these continues the owner's answer."""
    rng = random.Random(seed)
    plan = Plan(target.oracle, rng, rng.choice(block_sizes), target.fields)
    for name, dimension in DIMENSIONS.items():
        plan.rng = random.Random(f"{seed} {name}")  # another value here changes no choice there
        dimension.add(plan, values[name])
    config = EngineConfig(
        max_num_seqs=plan.max_num_seqs,
        max_num_batched_tokens=plan.budget or 2048,
        block_size=plan.block_size,
        return_logits=target.has_logits and not plan.aborts,
        **plan.limits,  # type: ignore[arg-type]
    )
    first = Workload(
        tuple(plan.requests),
        config,
        plan.arrivals,
        plan.aborts,
        plan.adapters,
        interruptions=plan.interruptions,
    )
    again = [*plan.requests]
    if plan.has_turn:  # it needs no larger pool than the owner
        owner = plan.requests[OWNER]
        said = plan.continued(OWNER)[: owner.max_new_tokens]
        again[LAST] = Request(NAMES[LAST], (*owner.prompt_token_ids, *said), 1)
    weights = first.updates[-1].weights
    return first, replace(first, requests=tuple(again), aborts=(), interruptions=(), weights=weights)


def without(values: Values, name: str, excluded: AbstractSet[Meeting] = EXCLUDED) -> Values | None:
    """Returns the values with the plain one of this dimension; None if they cannot meet so."""
    changed = {**values, name: PLAIN[name]}
    return None if excluded & {*combinations(sorted(changed.items()), 2)} else changed


def alone(meeting: Meeting) -> Values:
    """Returns values of all dimensions of which none is less plain than the meeting needs."""
    values = {**PLAIN, **dict(meeting)}
    is_stepped = values["abort"] != "off" or values["interruption"] != "off"
    if is_stepped and values["arrival"] == "one call":
        # A prefix may be cached no longer than it is used.
        values["arrival"] = "stepped" if values["prefixes"] == "off" else "late"
    if values["abort"] == "waiting" and values["slots"] == "each":
        values["slots"] = "two"
    if values["abort"] == "prefill" and values["chunks"] == "off":
        values["chunks"] = "least"
    return values
