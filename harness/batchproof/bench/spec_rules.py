"""What holds of every `BenchSpec`, wherever its values came from: a file, a flag, a test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from batchproof.bench.spec import BenchSpec

Complaint = tuple[str, str]
"""The field that is wrong, and what to say of it: "slots", "is 0, but must be at least 1"."""


def complaints(spec: BenchSpec) -> Iterator[Complaint]:
    """Nothing if all is well."""
    for field, least in (("num_requests", 1), ("slots", 1), ("seed", 0)):
        value = getattr(spec, field)
        if value < least:
            yield field, f"is {value}, but must be at least {least}"
    yield from _range_complaints(spec)
    yield from _prefix_complaints(spec)
    if spec.arrival_rate is not None and not 0 < spec.arrival_rate < float("inf"):
        yield "arrival_rate", f"is {spec.arrival_rate:g}, but must be above 0 and finite"
    longest = spec.prompt_len.high
    if spec.max_num_batched_tokens < max(spec.slots, longest):
        yield (
            "max_num_batched_tokens",
            f"is {spec.max_num_batched_tokens}, but must be at least {max(spec.slots, longest)}, for a "
            f"step has to hold a token of each of the {spec.slots} slots, and whole the longest prompt "
            f"({longest}), since not every engine cuts prompts",
        )


def _range_complaints(spec: BenchSpec) -> Iterator[Complaint]:
    ranges = [("prompt_len", spec.prompt_len), *(("cap", each) for _, each in spec.cap)]
    for field, each in ranges:
        if not 1 <= each.low <= each.high:
            yield field, f"is {each}, but must go from 1 or more to no less than that"
    shares = [share for share, _ in spec.cap]
    if min(shares, default=0) <= 0 or abs(sum(shares) - 1) > 1e-9:
        shown = ", ".join(f"{share:g}" for share in shares) or "none"
        yield "cap", f"has the shares {shown}, but they must be above 0 and add to 1"


def _prefix_complaints(spec: BenchSpec) -> Iterator[Complaint]:
    prefix = spec.shared_prefix
    if prefix is None:
        return
    if min(prefix.length, prefix.num_groups) < 1:
        shown = f"{prefix.length} tokens in {prefix.num_groups} groups"
        yield "shared_prefix", f"is {shown}, but both must be at least 1; leave it out for none"
    if spec.prompt_len.low <= prefix.length:
        yield (
            "prompt_len",
            f"begins at {spec.prompt_len.low}, but must be above {prefix.length}, the length of the "
            f"shared prefix of {spec.name!r}",
        )
    if spec.num_requests <= prefix.num_groups:
        yield (
            "num_requests",
            f"is {spec.num_requests}, but must be above {prefix.num_groups}, the number of groups that "
            f"share a prefix in {spec.name!r}",
        )
