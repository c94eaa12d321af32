"""Common decoders as one call of a native kernel: what lies between tokens and logits is a list of
operations on the rows of a step (`decoder_ops`), and none of them is Python or torch.

A model's modules must be those of transformers, unaltered. How its layers attend is what they ask
attention for in a trial pass. The trial batch at construction compares the answers with the model's
own.
"""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor
from torch.nn.modules.module import _has_any_global_hook
from transformers import PreTrainedModel

from batchproof_paged import native
from batchproof_paged.attention import NullBackend, passing_to, runs_its_class
from batchproof_paged.batch import Ints
from batchproof_paged.decoder_ops import FAMILIES, LOGITS, Decoder, Unknown
from batchproof_paged.lanes import LanePool

# Token ids (1, T), position ids (1, T), indices of the sampled tokens (S,) -> logits (S, vocab).
Forward = Callable[[Tensor, Tensor, Tensor], Tensor]
AROUND = "torch.nn.modules.", "transformers.activations", "transformers.pytorch_utils"


def native_decoder(model: PreTrainedModel, forward: Forward, backend: object) -> "NativeDecoder | None":
    """Returns None for a model that is of no known family, or that somebody has altered. `forward` runs
    it with our attention."""
    family = type(model).__module__.removeprefix("transformers.models.").partition(".")[0]
    homes = f"transformers.models.{family}.", *AROUND
    is_plain = not _has_any_global_hook() and all(
        runs_its_class(each)
        and type(each).__module__.startswith(homes)
        and type(each).forward.__module__.startswith(homes)  # classes are patched, too
        for each in model.modules()
    )
    if family not in FAMILIES or not is_plain or model.training or not isinstance(backend, LanePool):
        return None
    try:
        return NativeDecoder(model, forward, backend)
    except (Unknown, AttributeError):  # the latter: a module is not made like that it stands for
        return None


class NativeDecoder:
    """The model's forward pass, over the tokens of the step that `pool` has begun."""

    def __init__(self, model: PreTrainedModel, forward: Forward, pool: LanePool) -> None:
        """Raises `Unknown` for a model with parts that no operation computes."""
        backend, token = NullBackend(), torch.zeros(1, 1, dtype=torch.int64)
        with passing_to(backend):
            forward(token, token, token[0])
        if not backend.asked:
            raise Unknown
        self._model, self._pool, self._asked = model, pool, backend.asked
        self._rotary = getattr(model.base_model, "rotary_emb", None)
        self._angles = torch.zeros(2, 0, 0)  # cosines and sines (positions, rotary)
        self._frequencies = torch.zeros(0)  # that they are of
        self._capacity = -1  # of the pool that `_layers` belong to
        self._prepare()

    @torch.no_grad()
    def _prepare(self) -> None:
        self._decoder = Decoder(self._model, self._asked)
        self._logits = torch.empty(0)
        self._program = native.Program.of(self._decoder.ops, self._decoder.buffers)
        self._versions, self._addresses = self._decoder.versions, self._decoder.addresses

    @torch.no_grad()
    def follow(self) -> None:
        """Has the operations read the weights that the model has now, looking thoroughly for changes
        (`PackedLinear.follow`)."""
        self._decoder.follow(is_thorough=True)
        if self._addresses != self._decoder.addresses:
            self._prepare()

    def __call__(self, tokens: Ints, last: Ints) -> tuple[Tensor, Tensor]:
        """Returns the tokens (S,) chosen behind the indices `last` (S,) of `tokens` (T,), and the
        logits (S, vocab), which the next call overwrites."""
        if self._versions != self._decoder.versions:
            self._prepare()
        if self._capacity != self._pool.capacity:
            self._capacity = self._pool.capacity
            self._cells = [self._pool.layer(index, each) for index, each in enumerate(self._asked)]
            self._layers = (native.Layer * len(self._cells))(*self._cells)
        if len(self._logits) < len(last):
            self._logits = torch.empty(len(last), self._decoder.buffers[LOGITS].width)
        logits = self._logits[: len(last)]
        chosen = torch.empty(len(last), dtype=torch.int64)
        cosines, sines = self._rotation()
        step = native.Step(
            *(self._pool.tokens, tokens.ctypes.data, self._layers),
            *(cosines.data_ptr(), sines.data_ptr(), cosines.shape[1]),
            *(len(last), last.ctypes.data, logits.data_ptr(), chosen.data_ptr()),
            torch.get_num_threads(),
        )
        native.decode(self._program, step)
        return chosen, logits

    def _rotation(self) -> Tensor:
        """Returns cosines and sines (2, positions, rotary) as the model's own module computes them."""
        if self._rotary is None:
            return self._angles
        longest, frequencies = self._pool.longest_seq_len, self._rotary.inv_freq
        if self._angles.shape[1] < longest or not self._frequencies.equal(frequencies):
            self._frequencies = frequencies.clone()
            places = torch.arange(2 * longest)[None]
            angles = cast(tuple[Tensor, Tensor], self._rotary(torch.empty(1), position_ids=places))
            self._angles = torch.stack([each[0] for each in angles]).contiguous()
        return self._angles
