"""`SamplingParams` as plain values, for YAML and JSON: its fields that differ from their defaults."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from batchproof.api import SamplingParams

WHOLE = ("top_k", "seed", "min_tokens", "logprobs", "prompt_logprobs")
DEFAULTS = {each.name: each.default for each in fields(SamplingParams)}


def plain_values(asked: SamplingParams) -> dict[str, Any]:
    """Returns the fields that differ, with lists for tuples and sets; biases as pairs."""
    return {name: _plain(getattr(asked, name)) for name in asked.changed}


def _plain(value: Any) -> Any:
    if isinstance(value, frozenset):
        return sorted(value)
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def sampling_params(values: Mapping[str, Any]) -> SamplingParams:
    """Returns the parameters of plain values. Raises `ValueError` naming what is unknown or of another
    type; whether an engine can choose so, `SamplingParams.refusal` says."""
    unknown = [name for name in values if name not in DEFAULTS]
    if unknown:
        raise ValueError(f"sampling has no {unknown[0]!r}; known are {', '.join(DEFAULTS)}")
    return SamplingParams(**{name: _value(name, value) for name, value in values.items()})


def _value(name: str, value: Any) -> Any:
    form, read = READERS.get(name, ("a number", _number))
    try:
        return read(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"sampling: {name} is {value!r}, but must be {form}") from error


def _number(value: Any) -> float:
    return float(value)


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(value)
    return value


READERS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "logit_bias": (
        "a list of [token, bias]",
        lambda pairs: tuple((_whole(token), float(bias)) for token, bias in pairs),
    ),
    "allowed_token_ids": ("a list of ids", lambda tokens: frozenset(map(_whole, tokens))),
    "stop_token_sequences": (
        "a list of lists of ids",
        lambda lists: tuple(tuple(map(_whole, each)) for each in lists),
    ),
    **dict.fromkeys(WHOLE, ("a whole number", _whole)),
}
