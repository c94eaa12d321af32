"""How a request's tokens are chosen, beyond plain greedy decoding: part of the contract
(`batchproof.api`).

The float32 logits of a step, given the prompt and the tokens produced so far, go through these stages:

    1. `allowed_token_ids`        all other tokens: -inf
    2. `min_tokens`               until so many are produced: EOS ids -inf, and stop sequences ignored
    3. `logit_bias`               l + bias; those of a token that is named twice add up
    4. `repetition_penalty` r     tokens of prompt or answer: l / r if l > 0, else l * r
    5. `frequency_penalty` f,     l - f * (times produced) - p * (1 if ever produced);
       `presence_penalty` p       the prompt does not count
    6. `temperature` 0: the argmax. Above: l / temperature; `min_p` and `top_k` cut, then `top_p`, which
       sums the shares of what they left, renormalised; and of what is left, renormalised, a draw. Of
       equal tokens at a cut any may stay

So an EOS is at earliest token `min_tokens` + 1. A stop sequence lies within the answer, never in the
prompt; it ends the answer, of which it is a part, at earliest exactly with token `min_tokens`, and may
begin before.

Names and order are vLLM's (its sampler in V1); 4 is from Keskar et al., "CTRL", 2019; 5 from OpenAI's
API reference; min_p from Nguyen et al., "Turning up the heat", 2024; top_p from Holtzman et al., "The
curious case of neural text degeneration", 2020. `logprobs` and `prompt_logprobs` are of the logits
before stage 1, as vLLM's default.
"""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields, replace
from math import inf, isfinite
from typing import Any, NamedTuple

Check = tuple[bool, str]


Range = tuple[float, float]  # the least value and the highest
DRAFTS = "num_speculative_tokens"  # in `apart`: what an engine does not take beside drafts


@dataclass(frozen=True, slots=True)
class SamplingLimits:
    """What an engine documents of the parameters that it takes, where that is not all of the contract.
    The suite keeps to it, and the verdict says it.

    Raises nothing; `batchproof.run.capabilities` checks what an engine declares.
    """

    # Field -> the least and the highest value that it takes; of `logit_bias`, those of a bias.
    ranges: Mapping[str, Range] = field(default_factory=dict)
    # Field -> values that the contract forbids and the engine gives a meaning, such as logprobs -1.
    documented: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    # Fields of which a request has at most one; the suite keeps the first. `DRAFTS` stands for an
    # engine that drafts.
    apart: tuple[tuple[str, ...], ...] = ()

    def sentences(self) -> Iterator[str]:
        """Yields what is declared, for the verdict."""
        for name, (low, high) in self.ranges.items():
            yield f"declares that it takes {name} from {low:g} to {high:g}"
        for name, values in self.documented.items():
            yield f"declares a meaning of {name} {', '.join(f'{each:g}' for each in values)}"
        for names in self.apart:
            yield f"declares that it takes only one of {', '.join(names)}"


class TakenFields(AbstractSet[str]):
    """The names of the fields that an engine takes, with its limits of them."""

    def __init__(self, names: Iterable[str], limits: SamplingLimits | None = None) -> None:
        self._names = frozenset(names)
        self.limits = limits or SamplingLimits()

    @classmethod
    def _from_iterable(cls, it: Iterable[object]) -> frozenset[object]:  # type: ignore[override]
        return frozenset(it)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._names))

    def __len__(self) -> int:
        return len(self._names)

    def moved(self, asked: "SamplingParams") -> set[str]:
        """Returns the names of parameters that `kept_to` would change."""
        kept = self.kept_to(asked)
        return {name for name in asked.changed if getattr(kept, name) != getattr(asked, name)}

    def documented(self, asked: "SamplingParams") -> set[str]:
        """Returns the names of parameters whose value has a meaning that the contract forbids."""
        return {
            name for name, values in self.limits.documented.items() if getattr(asked, name) in values
        }

    def beyond_ranges(self) -> Iterator["SamplingParams"]:
        """Yields parameters that the contract allows and the declared ranges do not."""
        for name, (_, high) in self.limits.ranges.items():
            if name != "logit_bias":
                value: Any = high + 1
                asked = SamplingParams(**{name: value})
                if not asked.refusal(1 << 30, 1 << 30, frozenset()):
                    yield asked

    def beside_drafts(self) -> "TakenFields":
        """Returns what is taken where the engine drafts."""
        others = {name for names in self.limits.apart if DRAFTS in names for name in names}
        return TakenFields(self._names - others, self.limits)

    def kept_to(self, asked: "SamplingParams") -> "SamplingParams":
        """Returns the parameters with each value moved into its range, and of those apart the first."""
        changes: dict[str, Any] = {}
        for name, (low, high) in self.limits.ranges.items():
            value = getattr(asked, name)
            if name == "logit_bias":
                changes[name] = tuple((token, min(max(bias, low), high)) for token, bias in value)
            elif value is not None and name in asked.changed:
                changes[name] = type(value)(min(max(value, low), high))
        for names in self.limits.apart:
            both = [name for name in asked.changed if name in names]
            changes |= {name: getattr(SamplingParams(), name) for name in both[1:]}
        return replace(asked, **changes) if changes else asked


def highest(taken: AbstractSet[str], name: str) -> float:
    """Returns the highest value of a parameter that an engine takes."""
    limits = taken.limits if isinstance(taken, TakenFields) else SamplingLimits()
    return limits.ranges.get(name, (-inf, inf))[1]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose; each default leaves the logits as they are. It is not validated here: refusing a
    bad one is the engine's duty (promise P12), with `refusal` or words of its own."""

    temperature: float = 0.0  # 0: greedy
    top_k: int = 0  # so many of the likeliest tokens; 0: all
    top_p: float = 1.0  # the fewest of the likeliest left whose probabilities reach this sum
    min_p: float = 0.0  # those at least this share of the likeliest's probability
    seed: int | None = None  # the same seed draws the same tokens; None: from the system's randomness
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # token id, what is added to its logit
    allowed_token_ids: frozenset[int] | None = None  # None: all
    min_tokens: int = 0  # before any EOS, and in any answer that a stop sequence ends
    stop_token_sequences: tuple[tuple[int, ...], ...] = ()  # an answer ends with the first it ends in
    logprobs: int | None = None  # of how many of the likeliest, beside the chosen; None: no logprobs
    prompt_logprobs: int | None = None  # the same for the tokens of the prompt

    @property
    def draws(self) -> bool:
        """Whether tokens are drawn at random."""
        return self.temperature > 0

    @property
    def changes_logits(self) -> bool:
        """Whether some stage from 1 to 5 may change a logit."""
        return not _OF_LOGITS.isdisjoint(self.changed)

    @property
    def changed(self) -> list[str]:
        return [each.name for each in fields(self) if getattr(self, each.name) != each.default]

    def beyond(self, taken: AbstractSet[str]) -> str | None:
        """Returns why an engine that takes only these fields refuses others; None if they are at their
        defaults."""
        others = [each for each in self.changed if each not in taken]
        if not others:
            return None
        known = ", ".join(each.name for each in fields(self) if each.name in taken)
        value = getattr(self, others[0])
        return f"{others[0]} is {value!r}, but of sampling this engine takes {known or 'nothing'}"

    def within(self, taken: AbstractSet[str]) -> "SamplingParams":
        """Returns these parameters with all fields but `taken` at their defaults, within the limits of
        these."""
        left: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        asked = SamplingParams(**{name: left[name] for name in left if name in taken})
        return taken.kept_to(asked) if isinstance(taken, TakenFields) else asked

    def refusal(self, vocab_size: int, cap: int, eos_token_ids: AbstractSet[int]) -> str | None:
        """Returns why no answer can be chosen so, naming value and rule; None if one can."""
        checks = self._checks(vocab_size, cap, eos_token_ids)
        return next((why for is_wrong, why in checks if is_wrong), None)

    def _checks(self, vocab_size: int, cap: int, eos_token_ids: AbstractSet[int]) -> Iterator[Check]:
        for name, low, high in _RANGES:
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and isfinite(value)
            where = f"from {low:g} to {high:g}" if high < inf else f"at least {low:g}"
            yield not is_number or not low <= value <= high, f"{name} is {value!r}, but must be {where}"
        for name in _WHOLE:
            value = getattr(self, name)
            is_whole = isinstance(value, int) and value >= 0
            wrong = not is_whole and not (value is None and name in _OPTIONAL)
            yield wrong, f"{name} is {value!r}, but must be a whole number, at least 0"
        yield self.top_p == 0, "top_p is 0, but must be above 0"
        yield self.repetition_penalty == 0, "repetition_penalty is 0, but must be above 0"
        named = [*(token for token, _ in self.logit_bias), *(self.allowed_token_ids or ())]
        strange = [token for token in named if not 0 <= token < vocab_size]
        yield bool(strange), f"token {strange[:1]} is unknown: ids are 0 to {vocab_size - 1}"
        infinite = [bias for _, bias in self.logit_bias if not isfinite(bias)]
        yield bool(infinite), f"a logit_bias is {infinite[:1]}, but must be finite"
        yield self.min_tokens > cap, f"min_tokens is {self.min_tokens}, above max_new_tokens {cap}"
        banned = eos_token_ids if self.min_tokens else frozenset[int]()
        is_empty = self.allowed_token_ids is not None and not self.allowed_token_ids - banned
        yield is_empty, f"allowed_token_ids {sorted(self.allowed_token_ids or ())} leave no token"
        yield () in self.stop_token_sequences, "a stop_token_sequence is empty"


_OF_LOGITS = {
    *("allowed_token_ids", "min_tokens", "logit_bias"),
    *("repetition_penalty", "frequency_penalty", "presence_penalty"),
}
_OPTIONAL = ("seed", "logprobs", "prompt_logprobs")  # None is a value of theirs
_WHOLE = ("top_k", "min_tokens", *_OPTIONAL)
# The number, its least value, its highest.
_RANGES = (
    ("temperature", 0.0, inf),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("repetition_penalty", 0.0, inf),
    ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0),
)


class TokenLogprobs(NamedTuple):
    """What the logits of a step say of its tokens: natural logarithms of probabilities.

    `rank` is 1 for the likeliest token; it may be None for one that is not in `top`. `top` holds as
    many of the likeliest as were asked for, with their logprobs, the likeliest first.
    """

    logprob: float  # of the chosen token, or of the prompt's own
    rank: int | None
    top: tuple[tuple[int, float], ...]
