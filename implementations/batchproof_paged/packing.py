"""Copies of the weights of linear layers in layouts that a CPU multiplies faster.

Products of few rows, as in decode steps, are bound by reading the weights, and torch's own kernels on
a CPU take up to twice the time for it. Each copy takes the memory of its weights again; the model is
left alone. Copies follow the weights: a step looks at the version and the place of each, which every
in-place change of torch moves; and a step that begins a run compares sums of the bits, which a write
through `.data` moves as well.

They serve models that are traced (`torchscript`); `decoder` has copies of its own, for every number of
rows.

Which kernel multiplies is a constant of the machine's vector units (`kernel_for`), so that no choice
depends on a clock. Ours (`native`) holds as many sums as AVX-512 has registers; with fewer, oneDNN's,
which torch brings, gains on more rows.
"""

import sys
from collections.abc import Callable
from functools import cache
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from batchproof_paged import native
from batchproof_paged.attention import runs_its_class

Layer = nn.Linear  # or transformers' Conv1D, whose weight is (in, out)

ONEDNN, NATIVE = "onednn", "native"
USUAL_ROWS = 16  # for which oneDNN lays a copy out
LEAST_ROWS, MOST_ROWS = {NATIVE: 1, ONEDNN: 2}, 64  # that gain; else the layer itself multiplies
LEAST_SIZE = 1 << 20  # elements in all: the weights of smaller models stay in the caches of a core
WORDS_PER_SUM = 64

# TorchScript, because a trace can call it but cannot record the operator's own arguments.
_SCRIPT = """
def multiply(rows: Tensor, packed: Tensor, bias: Optional[Tensor]):
    return torch.ops.mkldnn._linear_pointwise(rows, packed, bias, "none", [], "")
"""


@cache
def _onednn() -> Callable[..., Tensor]:
    """Compiles the call of an operator that not every build of torch has."""
    return torch.jit.CompilationUnit(_SCRIPT).multiply


def kernel_for(dtype: torch.dtype) -> str | None:
    """Returns the kernel for weights of this dtype on this machine; None if no packed copy gains."""
    has_many_registers = torch.backends.cpu.get_cpu_capability() == "AVX512"
    if has_many_registers and works(NATIVE, dtype):
        return NATIVE
    return ONEDNN if works(ONEDNN, dtype) else None


def works(kernel: str, dtype: torch.dtype) -> bool:
    """Returns whether the kernel multiplies weights of this dtype here."""
    if kernel == NATIVE:
        return dtype is torch.float32 and native.works()
    return torch.backends.mkldnn.is_available() and dtype in (torch.float32, torch.bfloat16)


def multiply(
    kernel: str, rows: Tensor, packed: Tensor, bias: Tensor | None, num_outputs: int
) -> Tensor:
    """Returns `rows` (..., in) times a weight (out, in), of which `packed` is a copy, plus `bias`
    (out,): (..., out)."""
    if kernel == NATIVE:
        return torch.ops.batchproof.multiply_packed(rows, packed, bias, num_outputs)
    return _onednn()(rows, packed, bias)


def pack(kernel: str, weight: Tensor) -> Tensor:
    """Returns a copy of `weight` (out, in) in the kernel's layout, an opaque tensor."""
    if kernel == NATIVE:
        return native.pack(weight)
    return torch.ops.mkldnn._reorder_linear_weight(weight, USUAL_ROWS)


class PackedLinear:
    """A layer and a copy of its weights for a kernel: of all its outputs, or of a part."""

    def __init__(self, layer: Layer, kernel: str, part: slice | None = None) -> None:
        self.layer, self.kernel, self._part = layer, kernel, part or slice(None)
        self._source = layer.weight
        self._repack()

    def follow(self, is_thorough: bool) -> None:
        """Repacks if the weights have changed; a change through `.data` is seen if `is_thorough`."""
        is_same = self._mark == mark(self._source)
        if not is_same or (is_thorough and not self._sums.equal(_sums_of_bits(self._source))):
            self._repack()

    def multiply(self, packed: Tensor, rows: Tensor) -> Tensor:
        """Is the layer's forward pass over `rows` (1, T, in), given the copy."""
        return multiply(self.kernel, rows, packed, self.layer.bias, self.num_outputs)

    def _repack(self) -> None:
        seen = mark(self._source), _sums_of_bits(self._source)
        weight = self._source.detach()
        weight = weight.t() if isinstance(self.layer, Conv1D) else weight
        weight = weight[self._part]
        self.num_outputs = len(weight)
        self.weight = pack(self.kernel, weight)
        self._mark, self._sums = seen  # last: an engine in another thread may ask meanwhile


# The copies of the engine built last: engines are built often.
_LATEST: WeakKeyDictionary[PreTrainedModel, dict[object, PackedLinear]] = WeakKeyDictionary()


class Copies:
    """The copies of a model's weights that an engine uses: those of the engine built last, as far as it
    has them."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._known = _LATEST.get(model, {})
        self.used = _LATEST[model] = dict[object, PackedLinear]()

    def of(self, layer: Layer, kernel: str, part: slice | None = None) -> PackedLinear:
        """Returns the copy of these outputs of the layer; None: of all."""
        key = layer, id(layer.weight), kernel, repr(part)
        known = self._known.get(key)
        if known is not None:
            known.follow(is_thorough=False)
        self.used[key] = known or PackedLinear(layer, kernel, part)
        return self.used[key]

    def follow(self, is_thorough: bool) -> None:
        """Copies changed weights again; see `PackedLinear.follow`."""
        for each in self.used.values():
            each.follow(is_thorough)


class PackedLinears:
    """The copies that an engine uses, by the number of rows."""

    @torch.no_grad()
    def __init__(self, model: PreTrainedModel, pack: bool | None, is_invariant: bool = False) -> None:
        """`pack` None: copies are made of large models' weights. `is_invariant`: they are used whatever
        the number of rows."""
        layers = [] if pack is False else _packable(model)
        if pack is None and sum(each.weight.numel() for each in layers) < LEAST_SIZE:
            layers = []
        self._shared = Copies(model)
        for layer in layers:
            kernel = NATIVE if is_invariant else kernel_for(layer.weight.dtype)
            if kernel is not None:
                self._shared.of(layer, kernel)
        self._copies = self._shared.used
        self._most_rows = sys.maxsize if is_invariant else MOST_ROWS
        self._used = {
            num: tuple(each for each in self._copies.values() if num >= LEAST_ROWS[each.kernel])
            for num in (1, 2)  # or more
        }

    def follow(self, is_thorough: bool) -> None:
        """Copies changed weights again; see `PackedLinear.follow`."""
        with torch.no_grad():
            self._shared.follow(is_thorough)

    def selected(self, num_tokens: int) -> tuple[PackedLinear, ...]:
        """Returns the copies that a pass over so many tokens uses.

        The head goes with the others: each set of copies has a trace of its own, so there are few.
        """
        return () if num_tokens > self._most_rows else self._used[min(num_tokens, 2)]


def _packable(model: PreTrainedModel) -> list[Layer]:
    """Returns the layers whose forward pass is a product with a weight, and nothing else."""
    return [
        each
        for each in model.modules()
        if runs_its_class(each, nn.Linear, Conv1D)
        and isinstance(each.weight, nn.Parameter)
        and each.weight.dtype in (torch.float32, torch.bfloat16)
        and each.weight.is_contiguous()
        and each.weight.nbytes % 4 == 0  # for `_sums_of_bits`
    ]


def mark(weight: Tensor) -> tuple[int, int]:
    """Returns what changes with every change in place that torch knows of, and with the storage."""
    return weight.data_ptr(), 0 if weight.is_inference() else weight._version


def _sums_of_bits(weight: Tensor) -> Tensor:
    """Returns sums of the bits of every 64 words, which takes as long as to read them once, and one of
    the words that are left, or these. Without native kernels the order of 64 words does not matter."""
    words = weight.detach().flatten().view(torch.int32)
    if native.works():
        return native.sums_of_words(words, WORDS_PER_SUM)
    whole = len(words) - len(words) % WORDS_PER_SUM
    sums = words[:whole].view(-1, WORDS_PER_SUM).sum(dim=1, dtype=torch.int32)
    some = words[:whole:WORDS_PER_SUM]  # when all signs change, no sum does
    return torch.cat([sums, some, words[whole:]])
