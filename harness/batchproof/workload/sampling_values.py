"""`SamplingParams` as plain values, for YAML and JSON: its fields that differ from their defaults."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from batchproof.api import SamplingParams
from batchproof.records.decode import decode

NAMES = tuple(each.name for each in fields(SamplingParams))


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
    try:
        return decode(SamplingParams, values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"sampling: {error}") from None
