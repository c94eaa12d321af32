"""Checks and counts launches of Triton kernels, ours and inductor's, without running them. Ours are
compiled: a kernel that Triton or ptxas rejects for an H200 raises.

inductor does all but the last: it fuses for the GPU that `runtime` describes and writes the kernels and
the code that calls them; that code runs, and a stand-in takes the place of each kernel.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._dynamo.device_interface import CudaInterface

from tests.selftest.device.fake.ledger import Ledger
from tests.selftest.device.fake.runtime import H200, device_class

MAX_GRID = (2**31 - 1, 65_535, 65_535)


@contextmanager
def kernels(ledger: Ledger) -> Iterator[None]:
    """Has no effect if Triton is not installed: then neither we nor inductor can use it."""
    if find_spec("triton") is None:
        yield
        return
    with ExitStack() as stack:
        for change in (_our_launches(ledger), _inductor(ledger), _triton_target()):
            stack.enter_context(change)
        yield


@contextmanager
def _our_launches(ledger: Ledger) -> Iterator[None]:
    from triton.runtime.jit import JITFunction, MockTensor

    launch = JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool = False, **options: Any) -> None:  # noqa: ARG001
        named = {name: options[name] for name in self.arg_names if name in options}
        given = self.signature.bind(*args, **named).arguments
        _check(ledger, self.__name__, given, grid(given) if callable(grid) else grid)
        ledger.launch(f"triton:{self.__name__}", _tensors(given.values()))
        mocks = [MockTensor(each.dtype) if isinstance(each, Tensor) else each for each in args]
        compiled = launch(self, *mocks, grid=grid, warmup=True, **options)
        if compiled.metadata.shared > H200.shared_memory_per_block_optin:
            ledger.problem(f"{self.__name__} needs {compiled.metadata.shared} bytes of shared memory")

    with mock.patch.object(JITFunction, "run", run):
        yield


def _tensors(given: Iterable[object]) -> list[Tensor]:
    return [each for each in given if isinstance(each, Tensor)]


def _check(ledger: Ledger, name: str, given: dict[str, Any], grid: tuple[int, ...]) -> None:
    ledger.used_device()
    for parameter, value in given.items():
        if isinstance(value, Tensor) and value.device.type != "cuda":
            ledger.problem(f"{name} is given {parameter} on {value.device}")
    if not all(0 < size <= most for size, most in zip(grid, MAX_GRID, strict=False)):
        ledger.problem(f"{name} is launched on the grid {grid}")


@contextmanager
def _inductor(ledger: Ledger) -> Iterator[None]:
    from torch._inductor import async_compile, config
    from torch._inductor.fx_passes import joint_graph

    class Kernel:
        def __init__(self, name: str) -> None:
            self._name = name

        def run(self, *given: object, **_: object) -> None:
            ledger.launch(f"inductor:{self._name}", _tensors(given))

    def triton(_: object, name: str, *__: object, **___: object) -> Kernel:
        ledger.forbidden_in_capture("inductor compiles")
        return Kernel(name)

    def empty_strided(size: Any, stride: Any, dtype: torch.dtype) -> Tensor:
        return torch.empty_strided(size, stride, dtype=dtype, device="cuda")

    def reinterpret(of: Tensor, size: Any, stride: Any, offset: int = 0) -> Tensor:
        return of.as_strided(size, stride, of.storage_offset() + offset)

    guards = torch._C._dynamo.guards
    with ExitStack() as stack:
        for change in (
            # What is compiled here must never be found in the cache of a real run.
            config.patch(force_disable_caches=True, compile_threads=1),
            config.patch(joint_graph_constant_folding=False),  # folds on the device
            mock.patch.multiple(CudaInterface, **_interface(ledger)),
            mock.patch.object(torch._C, "_cuda_getCurrentRawStream", return_value=0, create=True),
            mock.patch.object(guards, "_empty_strided_cuda", empty_strided, create=True),
            mock.patch.object(guards, "_reinterpret_tensor", reinterpret),
            # Inductor tries patterns of attention and padded products on tensors of the device.
            mock.patch.object(joint_graph, "lazy_init"),
            mock.patch.object(async_compile.AsyncCompile, "triton", triton),
        ):
            stack.enter_context(change)
        torch._dynamo.reset()
        yield
        torch._dynamo.reset()


def _interface(ledger: Ledger) -> dict[str, Any]:
    """What inductor asks the device about; made of `torch.cuda`'s functions when that was imported."""
    names = ("current_device", "set_device", "device_count", "synchronize", "memory_allocated")
    now = {name: staticmethod(getattr(torch.cuda, name)) for name in (*names, "is_bf16_supported")}
    properties = staticmethod(lambda *_: H200)
    worker = SimpleNamespace(
        set_device=torch.cuda.set_device,
        current_device=torch.cuda.current_device,
        get_device_properties=lambda *_: H200,
    )
    exchange = dict.fromkeys(("exchange_device", "maybe_exchange_device"), staticmethod(lambda _: 0))
    return (
        now
        | exchange
        | {"get_device_properties": properties, "Worker": worker, "device": device_class(ledger)}
    )


@contextmanager
def _triton_target() -> Iterator[None]:
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    target = GPUTarget("cuda", 10 * H200.major + H200.minor, H200.warp_size)
    stand_in = SimpleNamespace(
        get_current_target=lambda: target,
        get_current_device=lambda: 0,
        get_current_stream=lambda *_: 0,
        get_device_capability=lambda *_: (H200.major, H200.minor),
    )
    with mock.patch.object(driver, "_active", stand_in):
        yield
