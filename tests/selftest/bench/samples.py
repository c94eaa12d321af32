"""Result files as a benchmark could have written them, without running one.

The schedules are played through, so that steps, stays, padding and composition agree with each other;
the times are drawn from a seed. `made()` is a whole result; `row()`, `comparison()` and `growth()` are
its parts, for a test that needs something odd; `saved()` writes a result as it is.
"""

from __future__ import annotations

import heapq
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from batchproof.bench.ratios import paired_ratio
from batchproof.bench.results import SCHEMA

SLOTS = 8
STEP_S = 0.01
Result = dict[str, Any]
SPEEDS = {"ragged": 1.0, "static": 1.0}  # of one step, beside each other


def made(
    *,
    workloads: Sequence[str] = ("uniform", "bimodal"),
    engines: Sequence[str] = ("static", "ragged"),
    speeds: Mapping[str, float] = SPEEDS,
    num_laps: int = 7,
    clock: str = "process",
    dtype: str = "float32",
    seed: int = 0,
    is_complete: bool = True,
) -> Result:
    comparisons = [
        comparison(
            name, engines, speeds=speeds, num_laps=num_laps, clock=clock, dtype=dtype, seed=seed + index
        )
        for index, name in enumerate(workloads)
    ]
    growths = [
        growth(engine, axis) for engine in engines for axis in ("sequences", "context", "prompt")
    ]
    result = {
        "schema": SCHEMA,
        "header": header(clock=clock, dtype=dtype),
        "comparisons": comparisons,
        "growth": growths,
        "load": [],
    }
    if is_complete:
        result["footer"] = {
            "finished": "2026-11-21 08:00 UTC",
            "num_comparisons": len(comparisons),
            "num_growth": len(growths),
            "num_load": 0,
        }
    return result


def header(
    *, clock: str = "process", dtype: str = "float32", cpu: str = "Some CPU at 2.0 GHz"
) -> Result:
    is_gpu = clock == "wall"
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
        "ceilings": {
            dtype: {
                "copy_bytes_per_s": 1.0e10,
                "read_bytes_per_s": 1.2e10,
                "matmul_flop_per_s": 5.0e10,
            }
        },
    }


def comparison(
    name: str = "bimodal",
    engines: Sequence[str] = ("static", "ragged"),
    *,
    speeds: Mapping[str, float] = SPEEDS,
    num_laps: int = 7,
    clock: str = "process",
    dtype: str = "float32",
    seed: int = 0,
) -> Result:
    sizes = _sizes(name)
    laps = random.Random(seed)
    weather = [laps.uniform(0.97, 1.1) for _ in range(num_laps)]  # how busy the machine was
    rows = [
        row(engine, sizes, [each / speeds.get(engine, 1.0) for each in weather], seed=seed + index)
        for index, engine in enumerate(engines)
    ]
    spec = {"num_requests": len(sizes), "slots": SLOTS, "seed": 0, "prompt_len": [8, 48]}
    if name == "poisson":
        spec["arrival_rate"] = 8.0
        clock = "wall"
    steps = {each["engine"]: each["schedule"]["num_steps"] for each in rows}
    least = min(steps.values(), default=1)
    return {
        "workload": {
            "name": name,
            "hash": f"{sum(map(ord, name)):012x}",
            "spec": spec,
            "totals": {
                "num_requests": len(sizes),
                "num_prompt_tokens": sum(prompt for prompt, _ in sizes),
                "max_output_tokens": sum(cap for _, cap in sizes),
            },
            "max_speedup_over_static": {"by_steps": steps.get("static", least) / least, "by_rows": 2.6},
        },
        "model": {"name": "tiny", "dtype": dtype, "num_parameters": 5_200_000, "load_s": 0.1},
        "clock": clock,
        "rows": rows,
        "ratios": [_ratio(each, rows[0], clock) for each in rows[1:]],
    }


def row(
    engine: str = "ragged",
    sizes: Sequence[tuple[int, int]] = ((20, 8), (9, 30)),
    weather: Sequence[float] = (1.0, 1.02, 0.99),
    *,
    verdict: str = "VALID",
    reason: str | None = None,
    interface: str = "stepping",
    seed: int = 0,
) -> Result:
    """`weather`: how much longer than alone each round takes; one number a round."""
    noise = random.Random(f"{engine} {seed}")
    schedule = _schedule(sizes, has_waves=engine == "static")
    seconds = [STEP_S * schedule["num_steps"] * each * noise.uniform(0.99, 1.01) for each in weather]
    median = sorted(seconds)[len(seconds) // 2]
    num_completions = len(sizes) * len(seconds)
    return {
        "engine": engine,
        "verdict": verdict,
        "reason": reason,
        "verification": {
            "num_completions": num_completions,
            "num_by_reference": num_completions,
            "num_scored": 0,
            "num_near_ties": 0,
        },
        "interface": interface,
        "build_s": 0.01,
        "first_round_s": 1.4 * median,
        "rounds": [{"wall_s": 1.01 * each, "process_s": each} for each in seconds],
        "metrics": None if verdict == "INVALID" else _metrics(sizes, median),
        "distributions": {
            f"{name}_ms": _spread(scale, noise) for name, scale in _latencies(median).items()
        },
        "schedule": schedule,
    }


def growth(engine: str = "ragged", axis: str = "sequences", exponent: float = 0.8) -> Result:
    places = {"sequences": [1, 2, 4, 8, 16, 32, 64], "context": [64, 256, 1024, 4096]}
    seconds = [(x, 0.002 * (1 + x**exponent / 8)) for x in places.get(axis, [16, 64, 256, 1024])]
    return {
        "engine": engine,
        "axis": axis,
        "unit": "s per prompt" if axis == "prompt" else "s per step",
        "fixed": {"sequences": 4} if axis == "context" else {"context": 64},
        "points": [{"x": x, "seconds": s, "low": 0.97 * s, "high": 1.04 * s} for x, s in seconds],
        "fit": {"exponent": exponent, "low": exponent - 0.1, "high": exponent + 0.1},
        "words": f"{engine}: time grows as {axis}^{exponent:.1f}",
    }


def load(engine: str = "ragged", rates: Sequence[float] = (5, 10, 20, 40), knee: float = 20) -> Result:
    """An engine that serves 30 requests per second, at rates below and above. At 40 the client is
    saturated."""
    point = {"client": {"own_share": 0.01}, "wall_s": [1.0], "workload_hash": "0" * 12}
    points = []
    for rate in rates:
        is_lost = rate > 30
        figures = {
            f"{kind}_{name}_ms": (5.0 + 30 * (rate > 10)) * (1 + index)
            for name in ("ttft", "tpot", "itl", "e2el")
            for index, kind in enumerate(("median", "p90", "p99"))
        }
        figures |= {"offered_rate": rate, "achieved_rate": min(rate, 30.0), "lag_ms": 0.0}
        figures |= {"output_throughput": 16.0 * min(rate, 30.0), "request_goodput": None}
        points.append(
            point
            | {
                "load": rate,
                "saturation": "the load generator is saturated: too slow" if is_lost else None,
                "metrics": None if is_lost else figures,
                "keeps_up": not is_lost,
                "spread": None if is_lost else {k: [v, v] for k, v in figures.items() if v is not None},
            }
        )
    workload = comparison("uniform")["workload"]
    return {
        "workload": {key: workload[key] for key in ("name", "hash", "spec", "totals")},
        "model": {"name": "tiny", "dtype": "float32"},
        "engine": engine,
        "verdict": "VALID",
        "reason": None,
        "kind": "rate",
        "burstiness": 1.0,
        "num_laps": 1,
        "points": points,
        "knee": knee,
        "words": f"knee at rate {knee:g}",
    }


def saved(path: Path, result: Mapping[str, Any]) -> Path:
    path.write_text(json.dumps(result, allow_nan=False), encoding="utf-8")
    return path


def _sizes(name: str) -> list[tuple[int, int]]:
    """Prompt length and cap of each request."""
    rng = random.Random(name)
    is_long = [name != "uniform" and rng.random() < 0.25 for _ in range(24)]
    return [(rng.randint(8, 48), rng.randint(40, 64) if long else 12) for long in is_long]


def _ratio(one: Result, over: Result, clock: str) -> Result:
    times, times_over = ([each[f"{clock}_s"] for each in it["rounds"]] for it in (one, over))
    found = paired_ratio(times, times_over)
    return {
        "engine": one["engine"],
        "over": over["engine"],
        "clock": clock,
        "ratio": found.ratio,
        "low": found.low,
        "high": found.high,
        "num_laps": found.num_laps,
    }


def _schedule(sizes: Sequence[tuple[int, int]], *, has_waves: bool) -> Result:
    """Prefill in one step, then a decode step for each further token."""
    stays, barriers = _waves(sizes) if has_waves else (_refilled(sizes), [])
    num_steps = max(each["start"] + 1 + each["decodes"] for each in stays)
    composition = [_composition(step, stays) for step in range(num_steps)]
    num_needed = sum(prompt + cap - 1 for prompt, cap in sizes)
    num_fed = sum(each["prefill"][0][1] + each["decodes"] for each in stays)
    num_busy = sum(1 + each["decodes"] for each in stays)
    return {
        "num_steps": num_steps,
        "mean_batch": num_busy / num_steps,
        "occupancy": num_busy / num_steps / SLOTS,
        "num_fed_tokens": num_fed,
        "num_needed_tokens": num_needed,
        "padding_waste": 1 - num_needed / num_fed,
        "peak_memory_bytes": None,
        "roofline": {"share": 0.31, "least_s": 0.3, "bytes": 1e9, "flop": 1e9, "bound": "memory"},
        "timeline": {"num_slots": SLOTS, "num_steps": num_steps, "stays": stays, "barriers": barriers},
        "composition": composition,
    }


def _waves(sizes: Sequence[tuple[int, int]]) -> tuple[list[Result], list[int]]:
    """A wave starts when the one before has ended; its prompts are padded to the longest."""
    stays, barriers, start = [], [], 0
    for first in range(0, len(sizes), SLOTS):
        wave = sizes[first : first + SLOTS]
        longest = max(prompt for prompt, _ in wave)
        for slot, (prompt, cap) in enumerate(wave):
            stays.append(_stay(slot, first + slot, start, [prompt, longest], cap))
        start += max(cap for _, cap in wave)
        barriers.append(start)
    return stays, barriers[:-1]


def _refilled(sizes: Sequence[tuple[int, int]]) -> list[Result]:
    """A slot takes the next request as soon as it is free."""
    free = [(0, slot) for slot in range(SLOTS)]
    stays = []
    for request, (prompt, cap) in enumerate(sizes):
        start, slot = heapq.heappop(free)
        heapq.heappush(free, (start + cap, slot))
        stays.append(_stay(slot, request, start, [prompt, prompt], cap))
    return stays


def _stay(slot: int, request: int, start: int, prefill: list[int], cap: int) -> Result:
    return {"slot": slot, "request": request, "start": start, "prefill": [prefill], "decodes": cap - 1}


def _composition(step: int, stays: Sequence[Result]) -> list[int]:
    """[prefill tokens, decode rows, idle rows, waiting requests]"""
    prefill = sum(each["prefill"][0][1] for each in stays if each["start"] == step)
    num_prefills = sum(each["start"] == step for each in stays)
    decodes = sum(each["start"] < step <= each["start"] + each["decodes"] for each in stays)
    waiting = sum(each["start"] > step for each in stays)
    return [prefill, decodes, SLOTS - decodes - num_prefills, waiting]


def _metrics(sizes: Sequence[tuple[int, int]], seconds: float) -> Result:
    num_prompt, num_output = (sum(column) for column in zip(*sizes, strict=True))
    latencies = {
        f"{which}_{name}_ms": scale * factor
        for name, scale in _latencies(seconds).items()
        for which, factor in {"mean": 1.1, "median": 1.0, "p90": 1.6, "p99": 2.0}.items()
    }
    return {
        "request_throughput": len(sizes) / seconds,
        "output_throughput": num_output / seconds,
        "total_token_throughput": (num_prompt + num_output) / seconds,
        "output_tokens_per_process_s": num_output / seconds,
        "num_output_tokens": num_output,
        "num_prompt_tokens": num_prompt,
        "request_goodput": None,
        "goodput_share": None,
    } | latencies


def _latencies(seconds: float) -> dict[str, float]:
    """Typical ones, in ms."""
    return {"ttft": 300 * seconds, "tpot": 1000 * STEP_S, "itl": 1000 * STEP_S, "e2el": 600 * seconds}


def _spread(scale: float, noise: random.Random) -> list[float]:
    return sorted(scale * noise.lognormvariate(0, 0.4) for _ in range(101))
