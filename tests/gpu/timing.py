"""Measures durations on a device; work is recorded first, so that its launch is not measured."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch

from batchproof.run.devices import synchronise

Action = Callable[[], object]


def seconds_of(action: Action, device: torch.device, num_calls: int = 10, num_rounds: int = 5) -> float:
    """Returns the median duration of a call in seconds, by the device's clock if it has one."""
    action()
    synchronise(device)
    return median(_round_s(action, device, num_calls) / num_calls for _ in range(num_rounds))


def _round_s(action: Action, device: torch.device, num_calls: int) -> float:
    if device.type != "cuda":
        began = perf_counter()
        for _ in range(num_calls):
            action()
        return perf_counter() - began
    began_event, ended_event = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began_event.record()
    for _ in range(num_calls):
        action()
    ended_event.record()
    ended_event.synchronize()
    return float(began_event.elapsed_time(ended_event)) / 1000


def recorded(action: Action, device: torch.device) -> Action:
    """Returns the action, on CUDA as the replay of a graph."""
    if device.type != "cuda":
        return action
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            action()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=aside):
        action()
    return graph.replay
