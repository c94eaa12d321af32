"""The options of the paged engine, so that the worth of each part can be measured and a fault
bisected, and what an engine can do with them."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Self

import torch

from batchproof.api import CHOOSING, Capability
from batchproof.errors import ConfigError
from batchproof_engines.grammars import LACKING
from batchproof_paged import native
from batchproof_paged.kernels import triton_works

INDUCTOR = "inductor"
SWITCH = (None, False, True)
PLAIN_COMPILERS = ("eager", "aot_eager")  # optimise nothing, to bisect a fault
BACKENDS = ("lanes", "blocks", "triton")
PACKED, STACKED, SEPARATE = FEEDS = ("packed", "stacked", "separate")
NO_AUTOCAST = (
    "engine 'paged' computes in the model's own dtype, but torch.autocast is on, which not all that it "
    "prepares would follow: build and run it outside, or convert the model"
)
# What `batch_invariant` is for. (How many threads share a product may matter, but for `decoder`.)
BITWISE = (
    *("batch", "order", "arrival", "chunking", "prefix", "prefill", "preemption", "speculation"),
    "interruption",
)
INVARIANCE = dict.fromkeys(BITWISE, "B") | dict.fromkeys(("neighbours", "restart"), "S")


@dataclass(frozen=True, slots=True)
class PagedOptions:
    """Options as in `--engine 'paged?backend=blocks&graphs=true'`; None and "auto" depend on model and
    device.

    `of` raises `ConfigError` for what is no option or no value of one; `resolved` for what does not go
    together.
    """

    backend: str = "auto"  # lanes on a CPU, in float32; on CUDA triton if it is installed; else blocks
    native: bool | None = None  # multiply, and run common decoders, by our kernels; default in lanes
    graphs: bool | None = None  # run steps as CUDA graphs (elsewhere unrecorded); default on CUDA
    overlap: bool | None = None  # read tokens, and EOS, one step late; default on CUDA
    compile: bool | str | None = None  # compile a layer for all; default on CUDA
    prepare: bool | None = None  # size the pool and capture steps at construction; default on CUDA
    feed: str = "auto"  # packed, stacked or separate: see `feeding`
    one_by_one: bool | None = None  # single tokens behind a first chunk; default as the model needs
    batch_invariant: bool = False  # the same bits in every batch: `invariant`
    offload: int = 0  # evicted blocks that go on in the host's memory: `block_manager`
    transfer: bool = False  # one engine computes prompts, another goes on: `transfer`

    @classmethod
    def of(cls, given: dict[str, object]) -> Self:
        """Raises `ConfigError` for a name that is no option, or a value that it cannot have."""
        choices: dict[str, tuple[object, ...]] = {each.name: SWITCH for each in fields(cls)}
        choices |= {"backend": ("auto", *BACKENDS), "feed": ("auto", *FEEDS)}
        choices["compile"] = (*SWITCH, *torch._dynamo.list_backends(), *PLAIN_COMPILERS)
        for name, value in given.items():
            if name not in choices:
                known = ", ".join((*choices, "num_speculative_tokens", "draft_agreement"))
                raise ConfigError(f"engine 'paged': {name!r} is no option; there are {known}")
            if name == "offload":
                if type(value) is not int or value < 0:
                    raise ConfigError(
                        f"engine 'paged': offload is {value!r}, but must be a whole number of blocks"
                    )
            elif repr(value) not in map(repr, choices[name]):  # 1 equals True, and is none
                listed = ", ".join(str(each).lower() for each in choices[name] if each is not None)
                raise ConfigError(f"engine 'paged': {name} is {value!r}, but must be one of {listed}")
        return cls(**given)  # type: ignore[arg-type]  # the types are checked above

    def resolved(self, device: torch.device, dtype: torch.dtype) -> Self:
        """Returns the options with the defaults of a model on this device, in this dtype, filled in.

        Raises `ConfigError`, naming value, rule and choices, for options that contradict each other.
        """
        is_cuda, is_cpu = device.type == "cuda", device.type == "cpu"
        is_packed = self.feed in ("auto", PACKED)
        is_native = is_cpu and dtype is torch.float32 and native.works()
        by_device = "triton" if is_cuda and triton_works() else "blocks"
        if is_native and not self.moves_blocks:
            by_device = "lanes"
        compiler = is_packed and is_cuda and triton_works() if self.compile is None else self.compile
        backend = by_device if self.backend == "auto" else self.backend
        found = replace(
            self,
            feed=PACKED if is_packed else self.feed,
            backend=backend,
            native=is_packed and backend == "lanes" and not compiler
            if self.native is None
            else self.native,
            graphs=is_packed and is_cuda if self.graphs is None else self.graphs,
            overlap=is_packed and is_cuda and not self.transfer
            if self.overlap is None
            else self.overlap,
            compile=INDUCTOR if compiler is True else compiler,
            prepare=is_packed and is_cuda if self.prepare is None else self.prepare,
        )
        for why in found._contradictions(is_cpu, dtype):
            raise ConfigError(f"engine 'paged' on {device.type}: {why}")
        return found

    def _contradictions(self, is_cpu: bool, dtype: torch.dtype) -> Iterator[str]:
        is_in_lanes, is_packed = self.backend == "lanes", self.feed == PACKED
        if is_in_lanes and not (is_cpu and dtype is torch.float32):
            yield f"backend=lanes is for a CPU and float32; the model is in {dtype}"
        yield from self._unbuilt()
        if self.backend == "triton" and not triton_works():
            yield "backend=triton needs Triton and CUDA"
        for name in ("native", "graphs", "overlap", "compile", "prepare"):
            if getattr(self, name) and not is_packed:
                yield f"{name} needs feed=packed"
        yield from self._immovable()
        if self.batch_invariant:
            yield from self._varying(is_cpu)
        if self.one_by_one and is_packed:
            yield "one_by_one needs feed=stacked or =separate"
        if self.native and self.compile:
            yield "native and compile exclude each other"
        for name, is_for_lanes in (("native", True), ("graphs", False), ("prepare", False)):
            if getattr(self, name) and is_in_lanes is not is_for_lanes:
                yield f"{name}=true needs backend={'lanes' if is_for_lanes else 'blocks or triton'}"

    def _unbuilt(self) -> Iterator[str]:
        for name, is_asked in (
            ("backend=lanes", self.backend == "lanes"),
            ("native=true", self.native),
        ):
            if is_asked and not native.works():
                yield f"{name} cannot be had: {native.why_not()}"

    def _immovable(self) -> Iterator[str]:
        if self.moves_blocks and (self.backend == "lanes" or self.feed != PACKED):
            yield "offload and transfer need feed=packed, and backend=blocks or triton"
        if self.transfer and self.overlap:
            yield "transfer=true needs overlap=false"

    def _varying(self, is_cpu: bool) -> Iterator[str]:
        needs = {
            "a CPU": is_cpu,
            "feed=packed": self.feed == PACKED,
            "backend=lanes or =blocks": self.backend != "triton",
            "native=true in lanes, and else =false": self.native is (self.backend == "lanes"),
        }
        for name in ("compile", "graphs", "prepare", "overlap", "transfer"):
            needs[f"{name}=false"] = not getattr(self, name)
        for what, is_so in needs.items():
            if not is_so:
                yield f"batch_invariant=true needs {what}"

    @property
    def moves_blocks(self) -> bool:
        """Blocks leave their pool, one by one."""
        return bool(self.offload) or self.transfer

    @property
    def keeps_prefixes(self) -> bool:
        """Requests can begin behind a known prefix: a state is that of one position, and a model's own
        cache is not shared."""
        return self.feed == PACKED

    @property
    def invariance(self) -> dict[str, str]:
        if not self.batch_invariant:
            return {}
        of_offload = {"offload": "B"} if self.offload else {}
        of_grammars = {"grammars": "S"} if Capability.STRUCTURED in self.capabilities else {}
        return INVARIANCE | of_offload | of_grammars

    def eager(self) -> Self:
        """Returns the options of a model whose layers change from step to step."""
        off = dict.fromkeys(("native", "graphs", "compile", "prepare"), False)
        return replace(self, **off)  # type: ignore[arg-type]

    @property
    def capabilities(self) -> frozenset[Capability]:
        lacking = {Capability.CLOSING}
        if self.overlap:
            lacking |= {*CHOOSING, Capability.STRUCTURED}
        if self.overlap or self.feed != PACKED:
            lacking |= {
                Capability.SPECULATION,
                Capability.EXACT_DRAFTS,
            }  # the host verifies drafts; a state has no way back
        if self.transfer:  # each of two engines schedules; a draft model would need the keys, too
            lacking |= {Capability.SCHEDULING, Capability.SPECULATION, Capability.EXACT_DRAFTS}
            lacking |= {Capability.PAUSING, Capability.SLEEPING, Capability.INTERRUPTION}
            lacking |= {Capability.CACHE_CLEARING, Capability.WEIGHT_UPDATES}  # there are two caches
        if not self.batch_invariant:
            lacking.add(Capability.INVARIANCE)
        if self.feed == SEPARATE:  # the model's own attention has the mask
            lacking.add(Capability.MASKING)
        if not self.keeps_prefixes:
            lacking.add(Capability.PREFIX_CACHING)
        # An adapter acts on the places of a packed row, by products that depend on their number.
        if self.feed != PACKED or self.batch_invariant:
            lacking.add(Capability.ADAPTERS)
        return frozenset(Capability) - lacking - LACKING
