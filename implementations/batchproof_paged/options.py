"""The options of the paged engine, so that the worth of each part can be measured and a fault
bisected."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from batchproof.errors import ConfigError
from batchproof_paged import native
from batchproof_paged.kernels import triton_works

TRITON_PDL = "triton_pdl"  # kernels start while those before them end; on no GPU tried yet
PLAIN_BACKENDS = ("eager", "aot_eager")  # compilers that optimise nothing, to bisect a fault
BACKENDS = ("lanes", "blocks", "triton", TRITON_PDL)
INDUCTOR = "inductor"
TORCH, NATIVE = "torch", "native"
LINEARS = ("auto", "plain", "onednn", NATIVE)
DECODES = ("auto", TORCH, NATIVE)
NO_AUTOCAST = (
    "engine 'paged' computes in the model's own dtype, but torch.autocast is on, which not all that it "
    "prepares would follow: build and run it outside, or convert the model"
)
PACKED, STACKED, SEPARATE = FEEDS = ("packed", "stacked", "separate")


def keeps_prefixes(options: PagedOptions) -> bool:
    """Returns whether requests can begin behind a known prefix. Where only a first chunk may have more
    than one token, the rest of a prompt would be fed token by token; and a model's own cache is not
    shared."""
    return options.feed != SEPARATE and not options.one_by_one


@dataclass(frozen=True, slots=True)
class PagedOptions:
    """Options as in `--engine 'paged?backend=blocks&graphs=true'`; None and "auto" depend on the
    device."""

    backend: str = "auto"  # lanes on a CPU; on CUDA triton if it is installed, else blocks
    trace: bool | None = None  # run the forward pass as TorchScript; default on a CPU
    graphs: bool | None = None  # run steps as CUDA graphs (elsewhere unrecorded); default on CUDA
    overlap: bool | None = None  # read tokens, and EOS, one step late; default on CUDA
    compile: bool | str | None = None  # compile a stretch of layers for all; default on CUDA
    prepare: bool | None = None  # size the pool and capture steps at construction; default on CUDA
    tune: bool = False  # choose the kernels' tiling by measurement at construction; needs triton
    linears: str = "auto"  # plain; packed for onednn or native, which needs trace; or by measurement
    decodes: str = "auto"  # their attention in lanes: torch's products, or native where that works
    poison: float | None = None  # the content of unused and freed blocks, which must have no effect
    feed: str = "auto"  # packed, stacked or separate: see `feeding`
    one_by_one: bool | None = None  # single tokens behind a first chunk; default as the model needs
    batch_invariant: bool = False  # the same bits in every batch: `tile_products`

    def __post_init__(self) -> None:
        """Raises `ConfigError` for a value of the wrong type."""
        for name in ("trace", "graphs", "overlap", "prepare", "tune", "one_by_one", "batch_invariant"):
            value = getattr(self, name)
            if not (value is None or isinstance(value, bool)):
                raise ConfigError(f"engine 'paged': {name} is {value!r}, but must be true or false")
        for name, choices in (("linears", LINEARS), ("decodes", DECODES)):
            value = getattr(self, name)
            if value not in choices:
                raise ConfigError(f"engine 'paged': {name} {value!r} is none of {', '.join(choices)}")
            if value == NATIVE and native.why_not():
                raise ConfigError(f"engine 'paged': {name}=native cannot be had: {native.why_not()}")
        is_number = isinstance(self.poison, int | float) and not isinstance(self.poison, bool)
        if self.poison is not None and not is_number:
            raise ConfigError(f"engine 'paged': poison is {self.poison!r}, but must be a number")
        if not (self.compile is None or isinstance(self.compile, bool)):
            backends = [*torch._dynamo.list_backends(), *PLAIN_BACKENDS]
            if self.compile not in backends:
                raise ConfigError(
                    f"engine 'paged': compile is {self.compile!r}, but must be true, false or one of "
                    f"{', '.join(backends)}"
                )

    @property
    def has_triton(self) -> bool:
        return self.backend in ("triton", TRITON_PDL)

    def resolved(self, device: torch.device) -> PagedOptions:
        """Returns the options with the device's defaults filled in.

        Raises `ConfigError`, naming value, rule and choices, for unknown or contradictory options.
        """
        if self.feed not in ("auto", *FEEDS):
            choices = ", ".join(FEEDS)
            raise ConfigError(f"engine 'paged': feed {self.feed!r} is none of auto, {choices}")
        is_cuda, is_cpu = device.type == "cuda", device.type == "cpu"
        is_packed = self.feed in ("auto", PACKED)
        is_plain_cpu = is_cpu and not self.batch_invariant
        by_device = "lanes" if is_plain_cpu else "triton" if is_cuda and triton_works() else "blocks"
        backend = by_device if self.backend == "auto" else self.backend
        if backend not in BACKENDS:
            choices = ", ".join(BACKENDS)
            raise ConfigError(f"engine 'paged': backend {backend!r} is none of auto, {choices}")
        compiler = is_packed and is_cuda and triton_works() if self.compile is None else self.compile
        chosen = replace(
            self,
            feed=PACKED if is_packed else self.feed,
            backend=backend,
            linears="plain" if self.batch_invariant and self.linears == "auto" else self.linears,
            trace=is_packed and is_cpu and not compiler if self.trace is None else self.trace,
            graphs=is_packed and is_cuda if self.graphs is None else self.graphs,
            overlap=is_packed and is_cuda if self.overlap is None else self.overlap,
            compile=INDUCTOR if compiler is True else compiler,
            prepare=is_packed and is_cuda if self.prepare is None else self.prepare,
        )
        for why in chosen._contradictions(is_cpu):
            raise ConfigError(f"engine 'paged' on {device.type}: {why}")
        return chosen

    def _contradictions(self, is_cpu: bool) -> Iterator[str]:
        """Yields what the options, which are resolved, lack of each other."""
        is_in_lanes, is_packed = self.backend == "lanes", self.feed == PACKED
        if is_in_lanes and not is_cpu:
            yield "backend=lanes is for a CPU"
        if self.has_triton and not triton_works():
            yield f"backend={self.backend} needs Triton and CUDA"
        if self.trace and not is_cpu:
            yield "trace=true is for a CPU"
        if self.decodes == NATIVE and (not is_in_lanes or self.feed == SEPARATE):
            yield "decodes=native needs backend=lanes, and feed=packed or =stacked"
        for name in ("trace", "graphs", "overlap", "compile", "prepare", "tune"):
            if getattr(self, name) and not is_packed:
                yield f"{name} needs feed=packed"
        if self.batch_invariant:
            yield from self._shortcomings(is_cpu)
        if self.one_by_one and is_packed:
            yield "one_by_one needs feed=stacked or =separate"
        if self.trace and self.compile:
            yield "trace and compile exclude each other"
        if self.linears in ("onednn", NATIVE) and not self.trace:
            yield f"linears={self.linears} needs trace=true"
        in_blocks = [name for name in ("graphs", "prepare") if getattr(self, name)]
        if in_blocks and is_in_lanes:
            yield f"{in_blocks[0]}=true needs backend=blocks or triton"
        if self.tune and not (self.prepare and self.has_triton):
            yield "tune=true needs backend=triton and prepare=true"

    def _shortcomings(self, is_cpu: bool) -> Iterator[str]:
        """Yields what `batch_invariant` lacks."""
        needs = {
            "a CPU": is_cpu,
            "feed=packed": self.feed == PACKED,
            "backend=blocks": self.backend == "blocks",
            "linears=plain": self.linears == "plain",
        }
        for name in ("compile", "graphs", "prepare", "overlap"):
            needs[f"{name}=false"] = not getattr(self, name)
        for what, is_so in needs.items():
            if not is_so:
                yield f"batch_invariant=true needs {what}"
