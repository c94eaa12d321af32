"""What a benchmark asks for in a dozen numbers (`BenchSpec`), the requests sampled from it
(`BenchWorkload`), which are the same in every run and on every machine for one seed, and the requests
of each round (`Laps`), which no engine can know before.

The order of the draws is part of the definition. One `random.Random(seed)` gives, request after
request, a prompt's length and then its tokens; after all prompts, the caps in order. With it `ragged`
has the totals that others publish for that workload.
"""

import hashlib
import json
import random
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from batchproof.api import EngineConfig, Request
from batchproof.errors import UsageError
from batchproof.validation.values import InvalidValueError, at_least, require

LARGEST_TOKEN = 10_000  # prompt tokens are sampled from 0..10000, then folded into the vocabulary


@dataclass(frozen=True, slots=True)
class Range:
    """Whole numbers from `low` to `high`, both included, all equally likely."""

    low: int
    high: int

    def sample(self, rng: random.Random) -> int:
        return rng.randint(self.low, self.high)

    def __str__(self) -> str:
        return f"{self.low}..{self.high}"


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Request i begins with the same `length` tokens as every other of group `i % num_groups`."""

    length: int
    num_groups: int


Mixture = tuple[tuple[float, Range], ...]
"""(share, range) pairs whose shares add to 1; one pair is a plain uniform draw."""


@dataclass(frozen=True, slots=True)
class BenchSpec:
    """A benchmark workload before its tokens are sampled. Raises `InvalidValueError`, which names the
    field, for a value out of range."""

    name: str
    why: str
    num_requests: int
    prompt_len: Range  # tokens, a shared prefix included
    cap: Mixture  # max_new_tokens; no request has an EOS id, so every cap is reached
    slots: int  # EngineConfig.max_num_seqs
    seed: int = 0
    shared_prefix: SharedPrefix | None = None
    max_num_batched_tokens: int = 2048
    prefix_caching: bool = False  # whether engines that are able may keep prefixes

    def __post_init__(self) -> None:
        for field, least in (("num_requests", 1), ("slots", 1), ("seed", 0)):
            at_least(field, getattr(self, field), least)
        rule = "a range from at least 1, its lower end first"
        for field, each in (("prompt_len", self.prompt_len), *(("cap", each) for _, each in self.cap)):
            require(1 <= each.low <= each.high, field, each, rule)
        shares = [share for share, _ in self.cap]
        if min(shares, default=0) <= 0 or abs(sum(shares) - 1) > 1e-9:
            shown = ", ".join(f"{share:g}" for share in shares) or "none"
            complaint = f"has the shares {shown}, but they must be above 0 and add up to 1"
            raise InvalidValueError("cap", complaint)
        if self.shared_prefix is not None:
            self._check_prefix(self.shared_prefix)
        least, budget = max(self.slots, self.prompt_len.high), self.max_num_batched_tokens
        rule = f"at least {least}, for a step holds a token of each slot, and the longest prompt whole"
        require(budget >= least, "max_num_batched_tokens", budget, rule)

    def _check_prefix(self, prefix: SharedPrefix) -> None:
        length, num_groups = prefix.length, prefix.num_groups
        shown = f"{length} tokens in {num_groups} groups"
        rule = "at least 1 token in at least 1 group; leave it out for none"
        require(min(length, num_groups) >= 1, "shared_prefix", shown, rule)
        rule = f"above {length}, the length of the shared prefix of {self.name!r}, at its low end"
        require(self.prompt_len.low > length, "prompt_len", self.prompt_len, rule)
        rule = f"above {num_groups}, the number of groups that share a prefix in {self.name!r}"
        require(self.num_requests > num_groups, "num_requests", self.num_requests, rule)

    def as_dict(self) -> dict[str, Any]:
        """Plain values as a result file keeps them, ranges as [low, high]."""
        plain = asdict(self)
        plain["prompt_len"] = [self.prompt_len.low, self.prompt_len.high]
        plain["cap"] = [{"share": share, "range": [r.low, r.high]} for share, r in self.cap]
        return plain

    def realise(self, vocab_size: int, context_len: int) -> "BenchWorkload":
        """Returns the requests for a vocabulary. Raises `UsageError` if one exceeds the context."""
        rng = random.Random(self.seed)
        prompts = [
            [rng.randint(0, LARGEST_TOKEN) % vocab_size for _ in range(self.prompt_len.sample(rng))]
            for _ in range(self.num_requests)
        ]
        caps = [self._sample_cap(rng) for _ in prompts]
        if self.shared_prefix is not None:
            length, num_groups = self.shared_prefix.length, self.shared_prefix.num_groups
            for index, prompt in enumerate(prompts):
                prompt[:length] = prompts[index % num_groups][:length]
        requests = tuple(
            Request(f"r{index}", tuple(prompt), cap)
            for index, (prompt, cap) in enumerate(zip(prompts, caps, strict=True))
        )
        self._check_fit(requests, context_len)
        # An engine that allocates its pool when built can size it, so that it does not grow in a lap.
        longest = max(map(_num_tokens, requests))
        return BenchWorkload(self, requests, replace(self.config, max_model_len=longest))

    @property
    def label(self) -> str:
        """The name and six hex digits of all that is asked for: other sizes have other labels."""
        asked = {key: value for key, value in self.as_dict().items() if key not in ("name", "why")}
        digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:6]
        return f"{self.name}@{digest}"

    @property
    def mean_output_tokens(self) -> float:
        return self.num_requests * sum(share * (r.low + r.high) / 2 for share, r in self.cap)

    @property
    def config(self) -> EngineConfig:
        """The limits without `max_model_len`, which follows from the requests."""
        return EngineConfig(
            max_num_seqs=self.slots,
            max_num_batched_tokens=self.max_num_batched_tokens,
            prefix_caching=self.prefix_caching,
        )

    def _sample_cap(self, rng: random.Random) -> int:
        draw = rng.random() if len(self.cap) > 1 else 0.0  # `ragged` depends on it
        for share, each in self.cap[:-1]:
            draw -= share
            if draw < 0:
                return each.sample(rng)
        return self.cap[-1][1].sample(rng)

    def _check_fit(self, requests: tuple[Request, ...], context_len: int) -> None:
        largest = max(requests, key=_num_tokens)
        if _num_tokens(largest) > context_len:
            raise UsageError(
                f"the largest request of workload {self.name!r} has {len(largest.prompt_token_ids)} "
                f"prompt tokens and a cap of {largest.max_new_tokens}, but the model's context holds "
                f"{context_len}; choose another workload or model, or lower --prompt-len or --cap"
            )


@dataclass(frozen=True)
class BenchWorkload:
    """The requests of a spec for one vocabulary. Two are equal if and only if their hashes are."""

    spec: BenchSpec
    requests: tuple[Request, ...]
    config: EngineConfig

    @cached_property
    def hash(self) -> str:
        """12 hex digits over all that an engine is given; `max_model_len` follows from the requests."""
        asked = [
            [r.request_id, r.prompt_token_ids, r.max_new_tokens, sorted(r.eos_token_ids)]
            for r in self.requests
        ]
        config = asdict(self.config)
        del config["max_model_len"], config["max_loras"]  # no workload has adapters
        given = {"requests": asked, "config": config}
        canonical = json.dumps(given, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]

    def totals(self) -> dict[str, int]:
        """The sizes of the sample. Nothing ends before its cap, so `max_output_tokens` are all
        delivered."""
        return {
            "num_requests": len(self.requests),
            "num_prompt_tokens": sum(len(r.prompt_token_ids) for r in self.requests),
            "max_output_tokens": sum(r.max_new_tokens for r in self.requests),
        }


class Laps:
    """The requests of all rounds of one measurement: the same lengths, caps and shared prefixes, with
    tokens that cannot be known before, so that answers or prefixes which an engine kept or computed in
    advance do not help it.

    Round 0 is the workload itself; each later one renames its tokens by a random permutation sampled
    when the round begins.
    """

    def __init__(self, requests: Sequence[Request], vocab_size: int) -> None:
        self._rounds = [tuple(requests)]
        self._vocab_size = vocab_size
        self.seeds: list[int] = []  # of rounds 1, 2, ...: they reproduce a round

    def __getitem__(self, number: int) -> tuple[Request, ...]:
        while number >= len(self._rounds):
            self.seeds.append(secrets.randbits(32))
            self._rounds.append(renamed(self._rounds[0], self._vocab_size, self.seeds[-1]))
        return self._rounds[number]


def renamed(requests: Sequence[Request], vocab_size: int, seed: int) -> tuple[Request, ...]:
    """The requests with every token replaced through one permutation of the vocabulary."""
    names = list(range(vocab_size))
    random.Random(seed).shuffle(names)
    return tuple(
        replace(r, prompt_token_ids=tuple(names[token] for token in r.prompt_token_ids))
        for r in requests
    )


def _num_tokens(request: Request) -> int:
    return len(request.prompt_token_ids) + request.max_new_tokens
