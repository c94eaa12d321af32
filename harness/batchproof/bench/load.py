"""What `--load` asks for: the loads at which engines are measured, rising."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from batchproof.bench.spec import BenchSpec
from batchproof.errors import UsageError
from batchproof.validation.values import InvalidValueError, require

RATE: Literal["rate"] = "rate"
CONCURRENCY: Literal["concurrency"] = "concurrency"
SHARES = (0.2, 0.4, 0.6, 0.8, 0.9, 1.0, 1.2)  # of the throughput with all requests submitted at once
FORM = "rate:R,... in requests per second, concurrency:N,... or auto"


@dataclass(frozen=True, slots=True)
class Load:
    """The loads of a sweep. Without values they are shares of a throughput that has to be measured
    first."""

    kind: Literal["rate", "concurrency"]
    values: tuple[float, ...]
    burstiness: float | None = 1.0  # of rates: 1 is Poisson; None in closed loop

    @classmethod
    def parsed(cls, text: str, burstiness: float | None = None) -> Self:
        """Returns what `--load` and `--burstiness` say. Raises `UsageError`."""
        shape = 1.0 if burstiness is None else burstiness
        rule = "above 0 and finite: 1 is Poisson, less comes in bursts"
        require(0 < shape < math.inf, "--burstiness", f"{shape:g}", rule)
        if text == "auto":
            return cls(RATE, (), shape)
        kind, _, listed = text.partition(":")
        require(kind in (RATE, CONCURRENCY) and bool(listed), "--load", repr(text), FORM)
        if kind == RATE:
            return cls(RATE, _values(text, listed, r"\d+(\.\d+)?", float), shape)
        rule = "left out with --load concurrency, where a request comes when another has ended"
        require(burstiness is None, "--burstiness", burstiness, rule)
        return cls(CONCURRENCY, _values(text, listed, r"\d+", int), None)

    @property
    def num_points(self) -> int:
        """The number of loads."""
        return len(self.values or SHARES)

    def at(self, requests_per_s: float) -> Load:
        """Returns the loads, where there are none yet as `SHARES` of a throughput."""
        rates = tuple(float(f"{share * requests_per_s:.3g}") for share in SHARES)
        return self if self.values else replace(self, values=rates)

    def specs(self, spec: BenchSpec) -> tuple[BenchSpec, ...]:
        """Returns the workload at each load. Raises `UsageError` if it has arrivals of its own, or
        fewer requests than should be in flight."""
        own = [name for name in ("arrival_rate", CONCURRENCY) if getattr(spec, name) is not None]
        if own:
            raise UsageError(
                f"--load varies when requests come, but workload {spec.name!r} has its own {own[0]}: "
                f"name a --workload without one"
            )
        try:
            if self.kind == CONCURRENCY:
                return tuple(replace(spec, concurrency=int(each)) for each in self.values)
            rated = replace(spec, arrival_rate=self.values[0], burstiness=self.burstiness)
            return tuple(replace(rated, arrival_rate=each) for each in self.values)
        except InvalidValueError as error:
            raise UsageError(f"--load on workload {spec.name!r}: {error}") from None


def by_title(entries: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Returns the entries of a result file's `load` in groups that ran side by side, by their
    title."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for entry in entries:
        workload, model = entry["workload"], entry["model"]
        place = f"{workload['name']} ({workload['hash']}) on {model['name']} in {model['dtype']}"
        groups.setdefault(f"{place}, {_process(entry)}", []).append(entry)
    return groups


def _process(entry: Mapping[str, Any]) -> str:
    if entry["kind"] == CONCURRENCY:
        return "closed loop"
    burstiness = entry["burstiness"]
    return "Poisson arrivals" if burstiness == 1 else f"gamma arrivals of burstiness {burstiness:g}"


def _values(text: str, listed: str, form: str, read: Callable[[str], float]) -> tuple[float, ...]:
    parts = listed.split(",")
    values = [read(each) for each in parts if re.fullmatch(form, each)]
    rule = f"{FORM}, with numbers above 0 that rise"
    rises = all(low < high for low, high in zip([0.0, *values], values, strict=False))
    require(len(values) == len(parts) and rises, "--load", repr(text), rule)
    return tuple(values)
