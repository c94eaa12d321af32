"""Result files as a benchmark could have written them, without running one.

Times are sampled from a seed. `made()` is a whole result; `comparison()` and `growth()` are its parts;
`saved()` writes a result as it is.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from batchproof.bench.ratios import paired_ratio
from batchproof.records.benchmark import BENCHMARK

SLOTS = 8
STEP_S = 0.01
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
    sizes = _sizes(name)
    laps = random.Random(seed)
    weather = [laps.uniform(0.97, 1.1) for _ in range(num_laps)]  # how busy the machine was
    rows = [
        _row(engine, sizes, [each / (speeds or {}).get(engine, 1.0) for each in weather], seed + index)
        for index, engine in enumerate(engines)
    ]
    return {
        "workload": {
            "name": name,
            "hash": f"{sum(map(ord, name)):012x}",
            "spec": {"num_requests": len(sizes), "slots": SLOTS, "seed": 0, "prompt_len": [8, 48]},
            "totals": {
                "num_requests": len(sizes),
                "num_prompt_tokens": sum(prompt for prompt, _ in sizes),
                "max_output_tokens": sum(cap for _, cap in sizes),
            },
            "max_speedup_over_static": {"by_steps": 1.9, "by_rows": 2.6},
        },
        "model": {"name": "tiny", "dtype": dtype, "num_parameters": 5_200_000, "load_s": 0.1},
        "clock": clock,
        "rows": rows,
        "ratios": [_ratio(each, rows[0], clock) for each in rows[1:]],
    }


def growth(engine: str = "ragged", exponent: float = 0.8) -> Result:
    points = [(x, 0.002 * (1 + x**exponent / 8)) for x in (1, 2, 4, 8, 16, 32, 64)]
    return {
        "engine": engine,
        "axis": "sequences",
        "unit": "s per step",
        "fixed": {"context": 64},
        "points": [{"x": x, "seconds": s, "low": 0.97 * s, "high": 1.04 * s} for x, s in points],
        "fit": {"exponent": exponent, "low": exponent - 0.1, "high": exponent + 0.1},
        "words": f"{engine}: time grows as sequences^{exponent:.1f}",
    }


def saved(path: Path, result: Mapping[str, Any]) -> Path:
    path.write_text(json.dumps(result, allow_nan=False), encoding="utf-8")
    return path


def _sizes(name: str) -> list[tuple[int, int]]:
    """Prompt length and cap of each request."""
    rng = random.Random(name)
    is_long = [name != "uniform" and rng.random() < 0.25 for _ in range(24)]
    return [(rng.randint(8, 48), rng.randint(40, 64) if long else 12) for long in is_long]


def _row(engine: str, sizes: Sequence[tuple[int, int]], weather: Sequence[float], seed: int) -> Result:
    """`weather`: how much longer than alone each round takes; one number a round."""
    noise = random.Random(f"{engine} {seed}")
    num_steps = sum(cap for _, cap in sizes) // SLOTS + 1
    seconds = [STEP_S * num_steps * each * noise.uniform(0.99, 1.01) for each in weather]
    num_completions = len(sizes) * len(seconds)
    return {
        "engine": engine,
        "verdict": "VALID",
        "reason": None,
        "verification": {
            "num_completions": num_completions,
            "num_by_reference": num_completions,
            "num_scored": 0,
            "num_near_ties": 0,
        },
        "interface": "stepping",
        "build_s": 0.01,
        "first_round_s": 1.4 * seconds[0],
        "rounds": [{"wall_s": 1.01 * each, "process_s": each} for each in seconds],
        "metrics": _metrics(sizes, sorted(seconds)[len(seconds) // 2]),
        "schedule": {
            "num_steps": num_steps,
            "mean_batch": 0.8 * SLOTS,
            "occupancy": 0.8,
            "num_fed_tokens": 2000,
            "num_needed_tokens": 1000,
            "padding_waste": 0.5,
            "peak_memory_bytes": None,
            "roofline": {"share": 0.31, "least_s": 0.3, "bytes": 1e9, "flop": 1e9, "bound": "memory"},
        },
    }


def _ratio(one: Result, over: Result, clock: str) -> Result:
    times, times_over = ([each[f"{clock}_s"] for each in it["rounds"]] for it in (one, over))
    found = paired_ratio(times, times_over)
    interval = {"ratio": found.ratio, "low": found.low, "high": found.high, "num_laps": found.num_laps}
    return {"engine": one["engine"], "over": over["engine"], "clock": clock, **interval}


def _metrics(sizes: Sequence[tuple[int, int]], seconds: float) -> Result:
    num_prompt, num_output = (sum(column) for column in zip(*sizes, strict=True))
    typical_ms = {"ttft": 300 * seconds, "tpot": 1000 * STEP_S, "itl": 1000 * STEP_S}
    typical_ms["e2el"] = 600 * seconds
    latencies = {
        f"{which}_{name}_ms": scale * factor
        for name, scale in typical_ms.items()
        for which, factor in {"mean": 1.1, "median": 1.0, "p90": 1.6, "p99": 2.0}.items()
    }
    return {
        "request_throughput": len(sizes) / seconds,
        "output_throughput": num_output / seconds,
        "total_token_throughput": (num_prompt + num_output) / seconds,
        "output_tokens_per_process_s": num_output / seconds,
        "num_output_tokens": num_output,
        "num_prompt_tokens": num_prompt,
    } | latencies
