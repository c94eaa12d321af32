"""Chooses the fastest of a few ways to iterate over keys on this device, by trying them on the pool.

The content of the pool is preserved: the trial writes what its cells already hold.
"""
# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from statistics import median
from typing import TypeVar

import torch
from triton.runtime.errors import OutOfResources

from batchproof_paged import triton_decode, triton_prefill
from batchproof_paged.attention import AttentionForm
from batchproof_paged.kernels import DecodeRows, LayerCache, LayerPass, PrefillRows
from batchproof_paged.triton_config import (
    KIB,
    DecodeSweep,
    PrefillSweep,
    Sweeps,
    keep,
    sweeps_for,
)

Launch = Callable[[], None]
Timer = Callable[[Launch], float]  # in milliseconds; may raise what the launch raises
Choice = TypeVar("Choice")

DECODES = (
    DecodeSweep(),
    DecodeSweep(num_stages=3),
    DecodeSweep(32 * KIB, 3),
    DecodeSweep(32 * KIB, 5, programs=3),
    DecodeSweep(num_stages=3, programs=6),
    DecodeSweep(num_warps=2),
    DecodeSweep(num_warps=1, programs=6),
)
PREFILLS = (
    PrefillSweep(),
    PrefillSweep(num_stages=3),
    PrefillSweep(max_queries=64),
    PrefillSweep(16 * KIB),
)


def tuned(
    cache: LayerCache,
    num_heads: int,
    form: AttentionForm,
    num_seqs: int,
    seq_len: int,
    time_ms: Timer | None = None,
) -> Sweeps:
    """Chooses the constants for layers like `cache`'s and puts them to use.

    Measures decodes of `num_seqs` rows and a prefill of one, all of `seq_len` tokens or as many as fit
    into the pool.

    Call it while there are no sequences and no capture is in progress: it waits for the device. Kernels
    that were captured before do not change.
    """
    timer = time_ms or on_device
    before = sweeps_for(cache)
    decode, prefill = _decode_trial(cache, num_heads, form, num_seqs, seq_len), None
    if cache.keys.element_size() == 2:  # wider numbers are limited by the number of registers
        prefill = _prefill_trial(cache, num_heads, form, seq_len)

    def with_(sweeps: Sweeps, launch: Launch) -> Launch:
        def run() -> None:
            keep(cache, sweeps)
            launch()

        return run

    best = before
    try:
        decodes = [replace(before, decode=each) for each in (before.decode, *DECODES)]
        best = fastest(((each, with_(each, decode)) for each in decodes), timer)
        if prefill is not None:
            prefills = [replace(best, prefill=each) for each in (before.prefill, *PREFILLS)]
            best = fastest(((each, with_(each, prefill)) for each in prefills), timer)
    finally:
        keep(cache, best)
    return best


def fastest(candidates: Iterable[tuple[Choice, Launch]], time_ms: Timer) -> Choice:
    """Returns the first of the fastest choices. Those that exceed the resources of the device are
    skipped."""
    durations: dict[Choice, float] = {}
    for choice, launch in candidates:
        if choice in durations:
            continue
        try:
            durations[choice] = time_ms(launch)
        except OutOfResources:
            continue
    assert durations, "no candidate fits on the device"
    return min(durations, key=lambda each: durations[each])


def on_device(launch: Launch) -> float:
    """Returns the median duration of a few launches in milliseconds, after warm-ups that compile."""
    for _ in range(3):
        launch()
    durations = []
    for _ in range(9):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        launch()
        end.record()
        end.synchronize()
        durations.append(begin.elapsed_time(end))
    return median(durations)


def _decode_trial(
    cache: LayerCache, num_heads: int, form: AttentionForm, num_seqs: int, seq_len: int
) -> Launch:
    num_blocks, block_size = cache.keys.shape[:2]
    seq_len = min(seq_len, max(1, (num_blocks - 1) // num_seqs) * block_size)
    num_columns = -(-seq_len // block_size)
    tables = _tables(cache, num_seqs, num_columns)
    last = (tables[:, num_columns - 1].long(), (seq_len - 1) % block_size)
    key, value = cache.keys[last], cache.values[last]
    query = key.new_zeros(num_seqs, num_heads, key.shape[2])
    out = value.new_empty(num_seqs, num_heads, value.shape[2])
    lanes = torch.arange(num_seqs, device=key.device)
    rows = DecodeRows(lanes, torch.full_like(lanes, seq_len), num_columns)
    given = LayerPass(query, key, value, cache, tables, form, out)
    return lambda: triton_decode.decode(given, rows)


def _prefill_trial(cache: LayerCache, num_heads: int, form: AttentionForm, seq_len: int) -> Launch:
    num_blocks, block_size = cache.keys.shape[:2]
    seq_len = min(seq_len, max(1, num_blocks - 1) * block_size)
    num_columns = -(-seq_len // block_size)
    tables = _tables(cache, 1, num_columns)
    places = torch.arange(seq_len, device=tables.device)
    slots = tables[0].long()[places // block_size] * block_size + places % block_size
    key, value = (each.flatten(0, 1)[slots] for each in (cache.keys, cache.values))
    query = key.new_zeros(seq_len, num_heads, key.shape[2])
    out = value.new_empty(seq_len, num_heads, value.shape[2])
    zero, starts = places[:1], torch.tensor([0, seq_len], device=tables.device)
    rows = PrefillRows(zero, zero, starts, num_columns, slots, None)
    given = LayerPass(query, key, value, cache, tables, form, out)
    return lambda: triton_prefill.prefill(given, rows)


def _tables(cache: LayerCache, num_seqs: int, num_columns: int) -> torch.Tensor:
    """Returns tables with different blocks for all rows, as far as the pool has enough, in random
    order."""
    num_blocks = cache.keys.shape[0]
    order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(0))
    cells = torch.arange(num_seqs * num_columns) % num_blocks
    return order[cells].view(num_seqs, num_columns).int().to(cache.keys.device)
