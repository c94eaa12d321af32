"""What a command line may name: embedded models, devices and dtypes. This module imports no torch.

A process that only distributes tests and prints what they found needs the names alone. The code that
builds a model is imported when the model is built.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from batchproof.models import (
    bamba_hash_oracle,
    deepseek_hash_oracle,
    eagle_hash_oracle,
    gemma2_hash_oracle,
    gpt2_hash_oracle,
    gpt2_long_oracle,
    gpt_oss_hash_oracle,
    llama_hash_oracle,
    qwen3_next_hash_oracle,
)
from batchproof.models import window_hash_oracle as window_oracle
from batchproof.models.hash_tables import IntegerOracle

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class EmbeddedModel:
    """A model made in memory from code. `builder` is a module of this package, its function,
    and the function's argument if it takes one."""

    builder: str
    oracle: IntegerOracle | None = None  # its greedy answer in integer arithmetic, if constructed
    nan_token: int | None = None  # a prompt that holds it has no right answer: its logits are NaN
    num_variants: int = 0  # low-rank adapters of it; its oracle takes the number of one
    variants: str = ""  # the module of this package that makes them

    def build(self) -> PreTrainedModel:
        """Returns the model in float32 on the CPU, in eval mode, without gradients. Leaves every RNG
        untouched."""
        module, function, *given = self.builder.split(":")
        return getattr(import_module(f"batchproof.models.{module}"), function)(*given)


# A default run tests on each of the first five, for the built-in engines on three of them; the others
# join where a test needs what they show.
EMBEDDED: dict[str, EmbeddedModel] = {
    "gpt2-hash": EmbeddedModel("gpt2_hash:build_gpt2_hash", gpt2_hash_oracle.generate),
    "llama-hash": EmbeddedModel(
        "llama_hash:build_llama_hash",
        llama_hash_oracle.generate,
        num_variants=llama_hash_oracle.NUM_VARIANTS,
        variants="llama_variants",
    ),
    "gpt2-random": EmbeddedModel("random_models:build:gpt2-random"),
    "llama-random": EmbeddedModel("random_models:build:llama-random"),
    "mistral-window": EmbeddedModel(
        "random_models:build:mistral-window", num_variants=2, variants="random_models"
    ),
    "qwen2-mixed": EmbeddedModel("random_models:build:qwen2-mixed"),
    "bamba-random": EmbeddedModel("random_models:build:bamba-random"),
    "gpt2-long": EmbeddedModel("gpt2_long:build_gpt2_long", gpt2_long_oracle.generate),
    "mistral-hash": EmbeddedModel("window_hash:build_mistral_hash", window_oracle.generate_dense),
    "mixtral-hash": EmbeddedModel("window_hash:build_mixtral_hash", window_oracle.generate_experts),
    "gpt2-nan": EmbeddedModel("gpt2_long:build_gpt2_nan", gpt2_long_oracle.generate, nan_token=256),
    "llama-twins": EmbeddedModel("llama_hash:build_llama_twins"),
    "bamba-hash": EmbeddedModel("bamba_hash:build_bamba_hash", bamba_hash_oracle.generate),
    "eagle-hash": EmbeddedModel("eagle_hash:build_eagle_hash", eagle_hash_oracle.generate),
}
# Models that no test needs: for benchmarks, and for engines whose states are of these kinds.
FURTHER = {
    "deepseek-hash": EmbeddedModel("deepseek_hash:build_deepseek_hash", deepseek_hash_oracle.generate),
    "gemma2-hash": EmbeddedModel("gemma2_hash:build_gemma2_hash", gemma2_hash_oracle.generate),
    "gpt-oss-hash": EmbeddedModel("gpt_oss_hash:build_gpt_oss_hash", gpt_oss_hash_oracle.generate),
    "llama-hash-64": EmbeddedModel("llama_hash:build_llama_hash_64", llama_hash_oracle.generate),
    "llama-hash-128": EmbeddedModel("llama_hash:build_llama_hash_128", llama_hash_oracle.generate),
    "llama-hash-deep": EmbeddedModel("llama_hash:build_llama_hash_deep", llama_hash_oracle.generate),
    "lfm2-random": EmbeddedModel("random_models:build:lfm2-random"),
    "mtp-hash": EmbeddedModel("mtp_hash:build_mtp_hash", eagle_hash_oracle.generate),
    "qwen3-next-hash": EmbeddedModel(
        "qwen3_next_hash:build_qwen3_next_hash", qwen3_next_hash_oracle.generate
    ),
    "qwen3-next-random": EmbeddedModel("random_models:build:qwen3-next-random"),
}
KNOWN = EMBEDDED | FURTHER
DEFAULT_MODELS = tuple(EMBEDDED)[:5]
# Learned positions; exact arithmetic, with RoPE; a window.
THREE_MODELS = ("gpt2-random", "llama-hash", "mistral-window")
QUICKEST_MODEL = "gpt2-random"  # it has learned positions
LONG_MODEL = "gpt2-long"
STATE_MODEL = "bamba-hash"  # it carries recurrent states beside its keys
DELTA_NET_MODEL = "qwen3-next-hash"  # so does it, of another kind
HEAD_MODEL = "eagle-hash"  # it has a draft head
VARIANTS_MODEL = "llama-hash"  # it has low-rank adapters
SINK_MODEL = "gpt-oss-hash"  # its heads have sinks
LATENT_MODEL = "deepseek-hash"  # it keeps latents instead of keys and values
QUICK_STATE_MODEL = "bamba-random"
TWINS_MODEL = "llama-twins"  # whose tokens are nearly equal in pairs
WITH_STATES = {STATE_MODEL, QUICK_STATE_MODEL}
NAN_MODEL = "gpt2-nan"  # for tests of it alone: most prompts of others have no right answer on it

DEVICES = "auto, cpu, cuda, cuda:N, mps, or another device that this torch computes on"
DTYPES = ("float32", "float64", "bfloat16", "float16")
