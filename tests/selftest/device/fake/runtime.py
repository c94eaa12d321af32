"""`torch.cuda` on a machine without CUDA: streams, events and graphs that record their use."""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch._subclasses import fake_tensor

from tests.selftest.device.fake.ledger import Ledger, Recording
from tests.selftest.device.native import built_for_torch

H200 = SimpleNamespace(
    name="NVIDIA H200, which is not there",
    major=9,
    minor=0,
    multi_processor_count=132,
    total_memory=139 << 30,
    warp_size=32,
    regs_per_multiprocessor=64 << 10,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    shared_memory_per_block_optin=227 << 10,
    L2_cache_size=50 << 20,
    gcnArchName="",
)


@contextmanager
def runtime(ledger: Ledger) -> Iterator[None]:
    """Makes torch see two H200, on which all tensors must be fake.

    The first one is current, so that work for the second is found if it does not name its device.
    """
    if torch.cuda.is_available():
        raise RuntimeError("the fake CUDA cannot replace a real one, and this machine has one")
    guard = ctypes.CDLL(str(built_for_torch(Path(__file__).with_name("guard.cpp"))))
    guard.install()
    try:
        with (
            mock.patch.multiple(torch.cuda, **_state(ledger), **_streams(ledger)),
            # It would start the driver, which a build for CUDA has even where there is no GPU.
            mock.patch.object(fake_tensor, "init_gpu_context", return_value=None),
        ):
            yield
    finally:
        guard.take_away()


def device_class(ledger: Ledger) -> type:
    class Device:
        """`torch.cuda.device`."""

        def __init__(self, device: Any = None) -> None:
            self._index = device if isinstance(device, int) else getattr(device, "index", None) or 0

        def __enter__(self) -> None:
            self._before, ledger.current_device = ledger.current_device, self._index

        def __exit__(self, *_: object) -> None:
            ledger.current_device = self._before

    return Device


def _state(ledger: Ledger) -> dict[str, Any]:
    """Answers questions of torch and others about devices, memory and random numbers."""
    answers = {
        "is_available": True,
        "is_bf16_supported": True,
        "device_count": 2,
        "get_device_properties": H200,
        "get_device_capability": (H200.major, H200.minor),
        "get_device_name": H200.name,
        "mem_get_info": (H200.total_memory, H200.total_memory),
        "memory_allocated": 0,
        "memory_reserved": 0,
        "max_memory_allocated": 0,
        "max_memory_reserved": 0,
    }
    ignored = ("set_device", "empty_cache", "reset_peak_memory_stats", "manual_seed", "_lazy_init")
    state: dict[str, Any] = {name: _answering(value) for name, value in answers.items()}
    state |= {name: _answering(None) for name in (*ignored, "manual_seed_all", "set_rng_state")}
    state |= {"get_rng_state": lambda *_: torch.zeros(1, dtype=torch.uint8)}
    device = device_class(ledger)
    return state | {
        "current_device": lambda: ledger.current_device,
        "device": device,
        "_DeviceGuard": device,
    }


def _answering(value: object) -> Callable[..., object]:
    return lambda *_args, **_options: value


def _streams(ledger: Ledger) -> dict[str, Any]:
    """Streams are synchronous with the host; each replay of a graph counts its launches again."""

    def wait(what: str) -> None:
        ledger.problem(f"{what} waits for all that was launched")

    class Event:
        def __init__(self, *_: object, **__: object) -> None: ...
        def record(self, *_: object) -> None:
            ledger.used_device()

        def wait(self, *_: object) -> None: ...
        def query(self) -> bool:
            ledger.forbidden_in_capture("an event is queried")
            return True

        def synchronize(self) -> None:
            ledger.forbidden_in_capture("the host waits for an event")

    class Stream:
        cuda_stream = 0

        def __init__(self, *_: object, **__: object) -> None: ...
        def wait_stream(self, _: object) -> None: ...
        def wait_event(self, _: object) -> None: ...
        def record_event(self, event: Event | None = None) -> Event:
            return event or Event()

        def synchronize(self) -> None:
            wait("Stream.synchronize")

    class CUDAGraph:
        def __init__(self, *_: object, **__: object) -> None:
            self._recording = Recording()

        def capture_begin(self, *_: object, **__: object) -> None:
            ledger.forbidden_in_capture("another capture begins")
            ledger.recording = self._recording
            ledger.num_captures += 1

        def capture_end(self) -> None:
            ledger.recording = None

        def replay(self) -> None:
            ledger.used_device()
            ledger.forbidden_in_capture("a graph is replayed")
            ledger.replay(self._recording)

        def pool(self) -> tuple[int, int]:
            return (0, 1)

        def reset(self) -> None: ...

    @contextmanager
    def graph(graph: CUDAGraph, *_: object, **__: object) -> Iterator[None]:
        graph.capture_begin()
        try:
            yield
        finally:
            graph.capture_end()

    only = Stream()
    return {
        "Event": Event,
        "Stream": Stream,
        "CUDAGraph": CUDAGraph,
        "graph": graph,
        "graph_pool_handle": lambda: (0, 1),
        "stream": lambda _: nullcontext(),
        "current_stream": lambda *_: only,
        "default_stream": lambda *_: only,
        "synchronize": lambda *_: wait("torch.cuda.synchronize"),
        "is_current_stream_capturing": lambda: ledger.recording is not None,
    }
