"""Result files as a benchmark could have written them, without running one.

Times are sampled from a seed. `made()` is a whole result; `comparison()` and `growth()` are its parts;
`saved()` writes a result as it is.
"""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from batchproof.bench.ratios import paired_ratio
from batchproof.records.benchmark import BENCHMARK

SLOTS = 8
ROUND_S = 0.6
TOTALS = {"num_requests": 24, "num_prompt_tokens": 600, "max_output_tokens": 480}
Result = dict[str, Any]
ENGINES = ("static", "ragged")


def made(
    *,
    workloads: Sequence[str] = ("uniform", "bimodal"),
    engines: Sequence[str] = ENGINES,
    seed: int = 0,
    is_complete: bool = True,
    **options: Any,
) -> Result:
    """`options`: of `comparison`."""
    comparisons = [
        comparison(name, engines, seed=seed + index, **options) for index, name in enumerate(workloads)
    ]
    result = {
        "schema": BENCHMARK.schema,
        "header": header(options.get("clock", "process"), options.get("dtype", "float32")),
        "comparisons": comparisons,
        "growth": [growth(engine) for engine in engines],
    }
    if is_complete:
        result["footer"] = {
            "finished": "2026-11-21 08:00 UTC",
            "num_comparisons": len(comparisons),
            "num_growth": len(engines),
        }
    return result


def header(clock: str = "process", dtype: str = "float32", cpu: str = "Some CPU at 2.0 GHz") -> Result:
    is_gpu = clock == "wall"
    rates = {"copy_bytes_per_s": 1.0e10, "read_bytes_per_s": 1.2e10, "matmul_flop_per_s": 5.0e10}
    return {
        "made": {
            "date": "2026-11-21 07:55 UTC",
            "command": "pytest --benchmark-only",
            "machine": {"cpu": cpu, "cores": 2},
            "versions": {"python": "3.11.9", "torch": "2.13.0", "transformers": "5.23.0"},
            "commit": "0123456789ab",
        },
        "device": {
            "type": "cuda" if is_gpu else "cpu",
            "name": "Some GPU" if is_gpu else cpu,
            "driver": "580.65" if is_gpu else None,
            "memory_bytes": 2**34,
            "threads": 1,
        },
        "clock": clock,
        "ceilings": {dtype: rates},
    }


def comparison(
    name: str = "bimodal",
    engines: Sequence[str] = ENGINES,
    *,
    speeds: Mapping[str, float] | None = None,
    num_laps: int = 7,
    clock: str = "process",
    dtype: str = "float32",
    seed: int = 0,
) -> Result:
    """`speeds`: of some engines, beside their usual one."""
    laps = random.Random(seed)
    weather = [laps.uniform(0.97, 1.1) for _ in range(num_laps)]  # how busy the machine was
    rows = [
        _row(engine, [each / (speeds or {}).get(engine, 1.0) for each in weather], seed + index)
        for index, engine in enumerate(engines)
    ]
    return {
        "workload": {
            "name": name,
            "hash": f"{sum(map(ord, name)):012x}",
            "spec": {"slots": SLOTS},
            "totals": TOTALS,
        },
        "model": {"name": "tiny", "dtype": dtype},
        "clock": clock,
        "rows": rows,
        "ratios": [_ratio(each, rows[0], clock) for each in rows[1:]],
    }


def growth(engine: str = "ragged") -> Result:
    points = [{"x": x, "seconds": 0.002 * x, "low": 0.0019 * x, "high": 0.0021 * x} for x in (1, 8, 64)]
    return {"engine": engine, "axis": "sequences", "points": points, "words": "grows as x^1"}


def saved(path: Path, result: Mapping[str, Any]) -> Path:
    path.write_text(json.dumps(result, allow_nan=False), encoding="utf-8")
    return path


def _row(engine: str, weather: Sequence[float], seed: int) -> Result:
    """`weather`: how much longer than alone each round takes; one number a round."""
    noise = random.Random(f"{engine} {seed}")
    seconds = [ROUND_S * each * noise.uniform(0.99, 1.01) for each in weather]
    latencies = {
        f"{which}_{name}_ms": 10 * factor
        for name in ("ttft", "tpot", "itl", "e2el")
        for which, factor in {"mean": 1.1, "median": 1.0, "p90": 1.6, "p99": 2.0}.items()
    }
    return {
        "engine": engine,
        "verdict": "VALID",
        "reason": None,
        "interface": "stepping",
        "cores": 0.97,
        "rounds": [{"wall_s": 1.01 * each, "process_s": each} for each in seconds],
        "metrics": {"num_output_tokens": TOTALS["max_output_tokens"], "output_throughput": 800.0}
        | latencies,
        "schedule": {"occupancy": 0.9, "padding_waste": None, "roofline": {"share": 0.31}},
    }


def _ratio(one: Result, over: Result, clock: str) -> Result:
    times, times_over = ([each[f"{clock}_s"] for each in it["rounds"]] for it in (one, over))
    ratio = asdict(paired_ratio(times, times_over))
    return {"engine": one["engine"], "over": over["engine"], "clock": clock, **ratio}
