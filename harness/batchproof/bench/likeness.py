"""What is not alike in two result files, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchproof.bench.results import is_complete

DEVICE = ("type", "name", "driver", "threads")
MACHINE = ("cpu", "cores")


def warnings_about(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """What a comparison of speeds should be warned of; none if both runs came to their end on machines
    and versions that are alike."""
    warnings = [
        f"{letter} is not complete: its run was stopped, or goes on"
        for letter, result in (("A", a), ("B", b))
        if not is_complete(result)
    ]
    machines = _machine(a), _machine(b)
    versions = a["header"]["made"]["versions"], b["header"]["made"]["versions"]
    for what, (one, other) in {"machines": machines, "versions": versions}.items():
        if unlike := _unlike(one, other):
            warnings.append(f"the {what} differ: {', '.join(unlike)}")
    return warnings


def difference(a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    """Of two workloads: totals of both, and what differs in what was asked for."""
    totals = [_totals(a), _totals(b)]
    same = f"{totals[0]} in both" if totals[0] == totals[1] else f"{totals[0]} in A, {totals[1]} in B"
    unlike = _unlike(a["spec"], b["spec"])
    return f"{same}; {', '.join(unlike) or 'the spec is the same, but gives other requests'}"


def _totals(workload: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {total}" for key, total in workload["totals"].items())


def _machine(result: Mapping[str, Any]) -> dict[str, Any]:
    made, device = result["header"]["made"], result["header"]["device"]
    machine = {key: made["machine"].get(key) for key in MACHINE}
    return machine | {f"device {key}" if key != "threads" else key: device.get(key) for key in DEVICE}


def _unlike(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    return [
        f"{key} is {_shown(a.get(key))} in A, {_shown(b.get(key))} in B"
        for key in {**a, **b}
        if a.get(key) != b.get(key)
    ]


def _shown(value: Any) -> str:
    return "not set" if value is None else str(value)
