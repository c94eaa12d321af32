"""The models under test: embedded ones by name, or in their place a real checkpoint, of a folder or
of a repository of the Hugging Face hub."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from batchproof.decoding.adapters import merge, register_adapters, save_adapter
from batchproof.errors import UsageError
from batchproof.models.by_module import ByModule
from batchproof.models.embedded import DEVICES, DTYPES, KNOWN
from batchproof.models.hash_tables import IntegerOracle
from batchproof.models.llama_hash_oracle import ROLL
from batchproof.models.shapes import SHAPES
from batchproof.validation.values import one_of

NUM_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")  # in configs
MAX_PARAMETERS_IN_FLOAT64 = 4_000_000_000
MAX_PARAMETERS_OF_COPIES = 1_000_000_000
NUM_BYTES = 256
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)  # owner/name
BROKEN = (OSError, ValueError, KeyError)


@dataclass(frozen=True)
class ModelUnderTest:
    """A model on its device, with what the suite needs to know about it."""

    name: str
    model: PreTrainedModel
    oracle: IntegerOracle | None = None
    tokenizer: PreTrainedTokenizerBase | None = None
    nan_token: int | None = None

    def has_answer(self, prompt: Sequence[int]) -> bool:
        """Returns whether a good request with this prompt has a right answer: no NaN in its logits."""
        return self.nan_token not in prompt

    @cached_property
    def alphabet(self) -> tuple[int, ...]:
        """The tokens that good prompts consist of, in order."""
        return tuple(each for each in range(self.vocab_size) if self.has_answer((each,)))

    @property
    def is_embedded(self) -> bool:
        return self.name in KNOWN

    @property
    def dtype_name(self) -> str:
        """The dtype as torch names it, such as "float32"."""
        return str(self.model.dtype).removeprefix("torch.")

    @cached_property
    def vocab_size(self) -> int:
        return self.model.config.get_text_config().vocab_size

    @cached_property
    def context_len(self) -> int:
        """The positions of the model; 2**20 where its configuration gives none."""
        return getattr(self.model.config.get_text_config(), "max_position_embeddings", None) or 1 << 20

    @cached_property
    def layer_kinds(self) -> frozenset[str]:
        """The kinds of attention layers that its configuration names, such as "sliding_attention"; none
        where it names none, and all layers are alike."""
        return frozenset(getattr(self.model.config.get_text_config(), "layer_types", None) or ())

    @cached_property
    def reach(self) -> int | None:
        """How many keys a token sees at most, where a sliding window bounds them in every layer."""
        if self.layer_kinds - {"sliding_attention"}:
            return None
        return getattr(self.model.config.get_text_config(), "sliding_window", None)

    @cached_property
    def has_experts(self) -> bool:
        """Whether tokens choose their expert: then its kernels' shapes depend on what all rows hold."""
        config = self.model.config.get_text_config()
        return any(getattr(config, name, None) for name in NUM_EXPERTS)

    @cached_property
    def exact(self) -> PreTrainedModel:
        """The same function in float64: a copy with the same, already rounded, weights.

        On the CPU where the device has no float64 (MPS). A 16-bit model of more than
        `MAX_PARAMETERS_IN_FLOAT64` is copied in float32, which is exact enough compared with its
        rounding; a float64 copy would not fit in memory beside it.
        """
        device = "cpu" if self.model.device.type == "mps" else self.model.device
        is_large = self.model.num_parameters() > MAX_PARAMETERS_IN_FLOAT64
        dtype = torch.float32 if is_large and self.is_16_bit else torch.float64
        exact = moved(copy.deepcopy(self.model), device, dtype)
        exact.set_experts_implementation("eager")  # the grouped kernels know no float64
        return exact

    @cached_property
    def scorer(self) -> Callable[..., Any]:
        """The same function as `exact` to score with, without a copy of a large model."""
        if not self.is_large:
            return self.exact
        return ByModule(self.model, torch.float32 if self.is_16_bit else torch.float64)

    @property
    def is_16_bit(self) -> bool:
        return self.model.dtype in (torch.bfloat16, torch.float16)

    @property
    def is_large(self) -> bool:
        """Whether its weights are so many that no copy of them is made to score."""
        return self.model.num_parameters() > MAX_PARAMETERS_OF_COPIES

    @property
    def has_texts(self) -> bool:
        """Whether each byte is the text of a token, which grammars are about."""
        return self.vocab_size == NUM_BYTES

    @property
    def num_variants(self) -> int:
        """How many low-rank adapters there are of it, numbered from 1 on."""
        return KNOWN[self.name].num_variants if self.is_embedded else 0

    @property
    def num_weights(self) -> int:
        """How many weights it may get, numbered from 0 on, which are its own."""
        return 2 * (self.num_variants + 1) if self.num_variants else 0

    def variant(self, number: int) -> ModelUnderTest:
        """Returns the model with the adapter of this number merged into its weights. Numbers behind
        those are other weights that it may get: those of the model alone, and of each adapter, with the
        vocabulary rolled, so that others change than those that adapters act on."""
        known = KNOWN[self.name]
        model = _built(self.name)
        is_rolled, adapter = divmod(number, self.num_variants + 1)
        if adapter:
            merge(model, adapter, self.model.dtype)
        ends = (model.get_input_embeddings(), model.get_output_embeddings())
        for weight in {each.weight for each in ends} if is_rolled else ():
            weight.copy_(weight.roll(ROLL, 0))
        oracle = partial(known.oracle, number=number) if known.oracle else None
        merged = moved(model, self.model.device, self.model.dtype)
        return ModelUnderTest(f"{self.name}+{number}", merged, oracle)

    def save_adapter(self, folder: Path, number: int) -> None:
        """Writes the adapter of this number, in the model's dtype, as PEFT does."""
        save_adapter(self.model, folder, number)

    def encode(self, text: str) -> tuple[int, ...]:
        """Returns the token ids of a text: by the checkpoint's tokenizer, else its UTF-8 bytes."""
        if self.tokenizer is not None:
            return tuple(self.tokenizer.encode(text))
        return tuple(byte % self.vocab_size for byte in text.encode())

    def decode(self, token_ids: Sequence[int]) -> str:
        """Returns the text of token ids for display; invalid UTF-8 shows as `\\x..`."""
        if self.tokenizer is not None:
            return str(self.tokenizer.decode(list(token_ids)))
        return bytes(token % 256 for token in token_ids).decode(errors="backslashreplace")

    def __str__(self) -> str:
        return f"{self.name} ({self.dtype_name}, {self.model.device.type})"


def load_model(name: str, device: torch.device, dtype: torch.dtype) -> ModelUnderTest:
    """Returns an embedded model or a shape by name, else a checkpoint by path or hub name. Raises
    `UsageError` if it is none of them."""
    if name in KNOWN:
        entry = KNOWN[name]
        model = moved(_built(name), device, dtype)
        return ModelUnderTest(name, model, entry.oracle, nan_token=entry.nan_token)
    if name in SHAPES:
        return ModelUnderTest(name, build_model(SHAPES[name].config(), device, dtype))
    try:
        model = _load_checkpoint(name, dtype)
    except UsageError as reason:
        raise UsageError(
            f"--model {name!r} is neither an embedded model ({', '.join(KNOWN)}) nor a shape "
            f"({', '.join(SHAPES)}) nor a causal-LM checkpoint: {reason}"
        ) from reason
    model = moved(model, device, dtype).eval().requires_grad_(False)
    return ModelUnderTest(name, model, tokenizer=_load_tokenizer(name))


def _built(name: str) -> PreTrainedModel:
    """Returns an embedded model, in float32 on the CPU, with its adapters registered."""
    entry = KNOWN[name]
    model = entry.build()
    if entry.variants:
        variants = import_module(f"batchproof.models.{entry.variants}")
        register_adapters(model, entry.num_variants, variants.low_rank)
    return model


@contextmanager
def without_bars() -> Iterator[None]:
    """Hides the progress bars of transformers, which cut through the output of a test session."""
    were_shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if were_shown:
            logging.enable_progress_bar()


def may_be_checkpoint(name: str) -> bool:
    """Whether there is such a folder, or the hub may have the name."""
    return Path(name).is_dir() or HUB_NAME.fullmatch(name) is not None


def _load_checkpoint(name: str, dtype: torch.dtype) -> PreTrainedModel:
    """Returns the causal LM in a folder or on the hub. Raises `UsageError` with the reason."""
    if not may_be_checkpoint(name):
        raise UsageError("there is no such folder, and a name of the hub reads owner/name")
    try:
        with without_bars():
            model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(name, dtype=dtype)
    except BROKEN as error:
        first_line = str(error).strip().splitlines()[0]
        raise UsageError(f"it could not be loaded: {first_line}") from error
    return model


def _load_tokenizer(name: str) -> PreTrainedTokenizerBase | None:
    """Returns None for a checkpoint without a tokenizer of texts: its text prompts are bytes."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
    except BROKEN:
        return None
    try:  # Where files are missing, transformers 5 may return a tokenizer without a vocabulary.
        return tokenizer if tokenizer.encode("a") else None
    except Exception:  # of this very class: one of words alone, as `batchproof checkpoint` writes it
        return None


def moved(model: PreTrainedModel, device: torch.device | str, dtype: torch.dtype) -> PreTrainedModel:
    """Returns the model on a device in a dtype. (transformers' wrapper of `to` hides its signature from
    type checkers.)"""
    return cast(torch.nn.Module, model).to(device=device, dtype=dtype)


def resolve_device(name: str) -> torch.device:
    """Returns the device; `auto` is CUDA, else MPS, else the CPU. Raises `UsageError` without it."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        # It raises for a type that torch knows by name only, as before a device's plugin is loaded.
        num_there = 1 if device.type == "cpu" else torch.get_device_module(device).device_count()
    except RuntimeError as error:
        raise UsageError(f"--device {name!r} is unknown; choose one of {DEVICES}") from error
    if (device.index or 0) >= num_there:
        raise UsageError(
            f"--device {name!r} is not there: this machine has {num_there} of type {device.type}"
        )
    return device


def resolve_dtype(name: str) -> torch.dtype:
    """Returns the dtype of that name. Raises `UsageError` for anything but the names in `DTYPES`."""
    return getattr(torch, one_of("--dtype", name, DTYPES))


SEED = 0


def build_model(config: PreTrainedConfig, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """Returns a model with random weights of `SEED`, in eval mode, without gradients. The global
    generators stay as they are.

    The weights are drawn on the device in the dtype, so they differ between devices and dtypes. The
    model is made in its dtype, not cast to it: a cast would also round RoPE's frequencies, which a
    16-bit model keeps in float32.
    """
    # MPS generators cannot be restored, so the weights come from the CPU's there.
    place = device if device.type in ("cpu", "cuda", "meta") else torch.device("cpu")
    gpus = [place] if place.type == "cuda" else []
    with torch.random.fork_rng(devices=gpus), place:
        torch.default_generator.manual_seed(SEED)
        for gpu in gpus:
            with torch.cuda.device(gpu):
                torch.cuda.manual_seed(SEED)
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return model.to(device=device).eval().requires_grad_(False)
