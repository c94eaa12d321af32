"""Which operations the decoders of some families of transformers are made of.

Keys and values are computed of all rows; of the last layer the rest only of the rows whose logits are
wanted.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import GELUTanh, NewGELUActivation, SiLUActivation
from transformers.pytorch_utils import Conv1D

from batchproof.errors import UnsupportedModelError
from batchproof_paged import native
from batchproof_paged.attention import Asked
from batchproof_paged.native import Buffer, Op, Product
from batchproof_paged.packing import Copies

FAMILIES = "llama", "mistral", "qwen2", "qwen3", "gpt2"
FUNCTIONS: dict[type[nn.Module], int] = {
    nn.ReLU: native.RELU,
    nn.SiLU: native.SILU,
    SiLUActivation: native.SILU,
    GELUTanh: native.GELU_TANH,
    NewGELUActivation: native.GELU_TANH,
}
# Buffers. The rows that are picked have a hidden state of their own.
BUFFERS = HIDDEN, PICKED, NORMED, QUERIES, KEYS, VALUES, ATTENDED, GATE, UP, LOGITS = range(10)
LOCAL = NORMED, KEYS, VALUES, GATE, UP  # which a row leaves behind before it meets others


class Unknown(UnsupportedModelError):
    """The model has a part that no operation computes."""

    def __init__(self) -> None:
        super().__init__("the model has become one that the native decoder does not know")


class Decoder:
    """The operations of a model, with the addresses that its tensors have now."""

    def __init__(self, model: PreTrainedModel, asked: list[Asked]) -> None:
        """Raises `Unknown`."""
        self._tensors: list[Tensor] = []  # what the addresses are of
        self._kept: list[Tensor] = []  # their memory, should they get another one
        self._copied: list[Tensor] = []
        self._asked, self._widths = asked, dict[int, int]()
        self._copies = Copies(model)
        parts = self._gpt2 if model.config.model_type == "gpt2" else self._llama
        self.ops = [*parts(model)]
        self.buffers = [Buffer(self._widths.get(each, 0), each in LOCAL) for each in BUFFERS]

    def follow(self, is_thorough: bool) -> None:
        """See `PackedLinear.follow`."""
        self._copies.follow(is_thorough)

    @property
    def versions(self) -> list[int]:
        """Change with every change in place, that torch knows of, of a weight of which there is a
        copy."""
        return [each._version for each in self._copied]

    @property
    def addresses(self) -> list[int]:
        copies = [each.weight for each in self._copies.used.values()]  # another one after a change
        return [each.data_ptr() for each in (*self._tensors, *copies)]

    def _llama(self, model: Any) -> Iterator[Op]:
        yield self._embed(model.model.embed_tokens, is_position=False)
        for index, layer in enumerate(model.model.layers[: len(self._asked)]):
            attention, mlp, is_last = layer.self_attn, layer.mlp, index == len(self._asked) - 1
            size = self._asked[index].key_size
            yield self._norm(layer.input_layernorm, HIDDEN, NORMED)
            yield self._multiply(attention.k_proj, NORMED, KEYS)
            yield from self._norm_heads(attention, "k_norm", KEYS)
            yield Op(native.ROTATE, KEYS, KEYS, size=size)
            yield self._multiply(attention.v_proj, NORMED, VALUES)
            yield from self._store(index, layer.input_layernorm, is_last)
            hidden = PICKED if is_last else HIDDEN
            yield self._multiply(attention.q_proj, NORMED, QUERIES)
            yield from self._norm_heads(attention, "q_norm", QUERIES)
            yield Op(native.ROTATE, QUERIES, QUERIES, size=size)
            yield self._attend(index)
            yield self._multiply(attention.o_proj, ATTENDED, hidden, is_added=True)
            yield self._norm(layer.post_attention_layernorm, hidden, NORMED)
            yield self._multiply(mlp.gate_proj, NORMED, GATE)
            yield self._multiply(mlp.up_proj, NORMED, UP)
            yield self._activate(mlp.act_fn, UP)
            yield self._multiply(mlp.down_proj, GATE, hidden, is_added=True)
        yield self._norm(model.model.norm, PICKED, NORMED)
        yield self._multiply(model.lm_head, NORMED, LOGITS)

    def _gpt2(self, model: Any) -> Iterator[Op]:
        if model.config.add_cross_attention:
            raise Unknown
        yield self._embed(model.transformer.wte, is_position=False)
        yield self._embed(model.transformer.wpe, is_position=True)
        for index, layer in enumerate(model.transformer.h):
            attention, mlp, is_last = layer.attn, layer.mlp, index == len(self._asked) - 1
            size = attention.split_size
            queries, keys, values = (slice(each * size, (each + 1) * size) for each in range(3))
            yield self._norm(layer.ln_1, HIDDEN, NORMED)
            yield self._multiply(attention.c_attn, NORMED, KEYS, part=keys)
            yield self._multiply(attention.c_attn, NORMED, VALUES, part=values)
            yield from self._store(index, layer.ln_1, is_last)
            hidden = PICKED if is_last else HIDDEN
            yield self._multiply(attention.c_attn, NORMED, QUERIES, part=queries)
            yield self._attend(index)
            yield self._multiply(attention.c_proj, ATTENDED, hidden, is_added=True)
            yield self._norm(layer.ln_2, hidden, NORMED)
            yield self._multiply(mlp.c_fc, NORMED, GATE)
            yield self._activate(mlp.act)
            yield self._multiply(mlp.c_proj, GATE, hidden, is_added=True)
        yield self._norm(model.transformer.ln_f, PICKED, NORMED)
        yield self._multiply(model.lm_head, NORMED, LOGITS)

    # ---- single operations -----------------------------------------------------------------------

    def _embed(self, table: nn.Embedding, is_position: bool) -> Op:
        if table.max_norm is not None:  # which changes the table
            raise Unknown
        weight = self._address(table.weight)
        num_rows, width = table.weight.shape
        self._fit((HIDDEN, width), (PICKED, width))
        return Op(*(native.EMBED, HIDDEN, HIDDEN), size=num_rows, function=is_position, weight=weight)

    def _norm(self, norm: Any, source: int, target: int) -> Op:
        is_centred = isinstance(norm, nn.LayerNorm)
        width = self._widths[source]
        self._fit((target, width))
        if norm.weight is None or width % norm.weight.numel():
            raise Unknown
        return Op(
            *(native.NORM, source, target),
            size=norm.weight.numel(),
            function=is_centred,
            weight=self._address(norm.weight),
            bias=self._address(getattr(norm, "bias", None)),
            epsilon=norm.eps if is_centred else norm.variance_epsilon,
        )

    def _norm_heads(self, attention: nn.Module, name: str, buffer: int) -> Iterator[Op]:
        """Norms each head, in models that do."""
        if hasattr(attention, name):
            yield self._norm(getattr(attention, name), buffer, buffer)

    def _multiply(
        self, layer: Any, source: int, target: int, part: slice | None = None, is_added: bool = False
    ) -> Op:
        """`part`: the outputs that are wanted; None: all."""
        if type(layer) not in (nn.Linear, Conv1D):
            raise Unknown
        _require_float(layer.weight)
        copy = self._copies.of(layer, part)
        self._kept.append(copy.weight)
        self._tensors.append(layer.weight)
        if not layer.weight.is_inference():  # which has no version
            self._copied.append(layer.weight)
        bias = None if layer.bias is None else layer.bias[part or slice(None)]
        self._address(layer.bias)
        self._fit((source, copy.weight.shape[1]), (target, copy.num_outputs))
        product = Product.of(copy.weight, bias, copy.num_outputs, is_added)
        return Op(native.MULTIPLY, source, target, product=product)

    def _store(self, index: int, norm: nn.Module, is_last: bool) -> Iterator[Op]:
        """Stores keys and values; behind those of the last layer picks the rows that are wanted."""
        _, num, key_size, value_size, _ = self._asked[index]
        self._fit((KEYS, num * key_size), (VALUES, num * value_size))
        yield Op(native.STORE, KEYS, other=VALUES, layer=index)
        if is_last:
            yield Op(native.PICK, HIDDEN, PICKED)
            yield self._norm(norm, PICKED, NORMED)

    def _attend(self, index: int) -> Op:
        num, _, key_size, value_size, _ = self._asked[index]
        self._fit((QUERIES, num * key_size), (ATTENDED, num * value_size))
        return Op(native.ATTEND, QUERIES, ATTENDED, layer=index)

    def _activate(self, function: nn.Module, other: int = -1) -> Op:
        if type(function) not in FUNCTIONS:
            raise Unknown
        if other >= 0:
            self._fit((other, self._widths[GATE]))
        return Op(native.ACTIVATE, GATE, GATE, other=other, function=FUNCTIONS[type(function)])

    def _fit(self, *widths: tuple[int, int]) -> None:
        """Notes widths of buffers. Raises `Unknown` for a model in which one has two."""
        for buffer, width in widths:
            if self._widths.setdefault(buffer, width) != width:
                raise Unknown

    def _address(self, tensor: Tensor | None) -> int | None:
        """Raises `Unknown` for a tensor that the kernel cannot read."""
        if tensor is None:
            return None
        _require_float(tensor)
        if not tensor.is_contiguous():
            raise Unknown
        self._tensors.append(tensor)
        self._kept.append(tensor.detach())
        return tensor.data_ptr()


def _require_float(tensor: Tensor) -> None:
    """Raises `Unknown` for what is no array of float32: another dtype, or a class of its own."""
    if type(tensor) not in (Tensor, nn.Parameter) or tensor.dtype is not torch.float32:
        raise Unknown
