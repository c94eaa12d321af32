"""OpenVINO GenAI's ContinuousBatchingPipeline on a CPU, by token ids: it needs no tokenizer for them.

Conventions of the library and their sources; they are translated here, and nothing else is:
* An EOS is the last token of an output; the library gives its reason (generation_handle.hpp).
* Each request has its own cap and stop tokens. One without an `eos_token_id` also gets the model's, so
  each names the lowest of its own, and one that has none sets `ignore_eos` (GenerationConfig).
* A request that ends as IGNORED was given up for lack of cache (generation_handle.hpp): a refusal.
* A pool is counted in blocks of 32 tokens; with 0 of them it grows (scheduler_config.hpp).
* Requests without a seed share one there, 0, so each gets a random one. It has no biases and no allowed
  tokens, its stop strings are texts, and of logprobs it gives that of the chosen token alone.
* A grammar is followed by the tokens of a tokenizer, and a pipeline with a draft compares those of both
  models: each gets one beside it, of bytes where the checkpoint has one.
* A grammar ends with the stop tokens of its request (xgrammar_backend.cpp).
* Adapters are named when a pipeline is built, and one `generate` has the same for all of its requests;
  `add_request` has none. Alpha is what is multiplied by, and `adapter_config.json` is not read.
* Requests are numbers to the library. An id that is used again keeps its number, even while it is live.

A model is converted by optimum's documented export: stateful, its weights in float32.
"""

from __future__ import annotations

import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import openvino as ov
import openvino_genai as genai

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where `serving` lies
sys.path.append(str(Path(__file__).resolve().parent))
from pipeline import GRAMMARS, NGRAM_SIZE, PARAMETERS, Adapted, Pipeline
from serving import Length, Unsupported, made_once, serve

BYTES = "bytes"  # the folder of a checkpoint's tokenizer of bytes
BLOCK_SIZE = 32  # tokens in one block of the library's pool, on a CPU
PRECISIONS = {"float32": "f32", "default": None}  # None: the library's own choice


class OpenVinoGenAI:
    """The library with its options.

    `precision` is that of the computation, `kv_cache` that of keys and values (by default `precision`).
    `prefix_caching` overrides a configuration; `dynamic_split_fuse` is not in one. With `adapters`
    there are those, and no steps.
    """

    name = "openvino-genai"

    def __init__(
        self,
        precision: str = "float32",
        kv_cache: str | None = None,
        prefix_caching: bool | None = None,
        dynamic_split_fuse: bool = True,
        adapters: bool = False,
    ) -> None:
        kv_cache = kv_cache or precision
        for option, value in (("precision", precision), ("kv_cache", kv_cache)):
            if value not in PRECISIONS:
                raise ValueError(f"{option} is {value!r}, but must be one of {', '.join(PRECISIONS)}")
        hints = {"INFERENCE_PRECISION_HINT": precision, "KV_CACHE_PRECISION": kv_cache}
        self._properties = {hint: PRECISIONS[each] for hint, each in hints.items() if PRECISIONS[each]}
        self._overrides = {
            "enable_prefix_caching": prefix_caching,
            "dynamic_split_fuse": dynamic_split_fuse,
        }
        self.version = version("openvino-genai")
        self._has_adapters = adapters
        self.capabilities = ["adapters" if adapters else "stepping", "preemption"]
        self.capabilities += ["chunked_prefill"] * dynamic_split_fuse
        self.capabilities += ["sampling", "seeded_sampling", "logit_processing", "speculation"]
        self.capabilities.append("structured")
        self.grammar_kinds = [*GRAMMARS]
        self.sampling_fields = list(PARAMETERS)
        self.sampling_limits = {"ranges": {"min_p": (0.0, 1 - 2**-24)}}  # below 1, in float32
        given = [f"{name} is {value}" for name, value in self._overrides.items() if value is not None]
        self.notes = [
            f"precision of the computation: {precision}, of the keys and values: {kv_cache}",
            f"the settings override each configuration: {', '.join(given)}",
            Length.note,
            "drafts come from a draft_model, or without one from prompt_lookup, with n-grams of up to "
            f"{NGRAM_SIZE} tokens; a draft has the library's default scheduler",
        ]
        if adapters:
            # Blocks that prompts of several adapters share are so the library's own.
            self.block_size_multiple = BLOCK_SIZE
            self.notes.append(
                "while adapters are loaded there is a call of generate for each that requests name, "
                "one after another; another set of them is another pipeline"
            )

    def build(
        self,
        folder: str,
        dtype: str,
        config: dict[str, Any],
        num_threads: int,
        draft: str | None = None,
    ) -> Pipeline:
        if dtype != "float32":
            raise Unsupported(f"models in {dtype} are not converted here, only those in float32")
        limits = genai.SchedulerConfig()
        limits.max_num_seqs = config["max_num_seqs"]
        limits.max_num_batched_tokens = config["max_num_batched_tokens"]
        limits.enable_prefix_caching = config["prefix_caching"]
        length = Length(folder, config)
        if not self._overrides["dynamic_split_fuse"]:  # a prompt is fed at once, or ends the pipeline
            limits.max_num_batched_tokens = max(limits.max_num_batched_tokens, length.longest)
        num_tokens = (config["num_blocks"] or 0) * config["block_size"]
        limits.num_kv_blocks = -(-num_tokens // BLOCK_SIZE)
        for name, value in self._overrides.items():
            if value is not None:
                setattr(limits, name, value)
        num_drafts = config["num_speculative_tokens"]
        properties = self._properties | {"INFERENCE_NUM_THREADS": num_threads}
        drafting: dict[str, Any] = {}
        if draft is not None:
            other = str(_converted(draft))
            drafting = {"draft_model": genai.draft_model(other, "CPU", **properties)}
        elif num_drafts:
            drafting = {"prompt_lookup": True}
        model = str(_converted(folder))

        def pipeline(**more: Any) -> genai.ContinuousBatchingPipeline:
            return genai.ContinuousBatchingPipeline(model, limits, "CPU", properties | drafting | more)

        lacks = () if Path(folder, BYTES).is_dir() else ("structured",)
        kind = Adapted if self._has_adapters else Pipeline
        return kind(pipeline, length, num_drafts, lacks)


def _converted(folder: str) -> Path:
    return made_once(Path(folder) / "openvino-genai", partial(_convert, folder))


def _save_tokenizer(folder: str, target: Path) -> None:
    """Saves the tokenizer of bytes, or one that nobody asks."""
    from openvino_tokenizers import convert_tokenizer  # noqa: PLC0415 - seconds, as below
    from tokenizers import Tokenizer, models  # noqa: PLC0415
    from transformers import AutoTokenizer, PreTrainedTokenizerFast  # noqa: PLC0415

    if Path(folder, BYTES).is_dir():
        tokenizer = AutoTokenizer.from_pretrained(Path(folder, BYTES))
    else:
        words = Tokenizer(models.BPE({"a": 0, "aa": 1, "?": 2}, [("a", "a")], unk_token="?"))
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="?")
    converted = convert_tokenizer(tokenizer, with_detokenizer=True)
    for name, model in zip(("tokenizer", "detokenizer"), converted, strict=True):
        ov.save_model(model, target / f"openvino_{name}.xml")


def _convert(folder: str, target: Path) -> None:
    """Exports the model. Its imports take seconds and are needed for nothing else."""
    import torch  # noqa: PLC0415
    from optimum.exporters.openvino import export_from_model  # noqa: PLC0415
    from optimum.intel import OVConfig  # noqa: PLC0415
    from transformers import AutoModelForCausalLM  # noqa: PLC0415
    from transformers.utils import logging  # noqa: PLC0415

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        export_from_model(
            model,
            output=target,
            task="text-generation-with-past",
            ov_config=OVConfig(dtype="fp32"),
            stateful=True,
        )
        _save_tokenizer(folder, target)
    except (KeyError, ValueError) as error:
        raise Unsupported(f"optimum does not export it: {error}") from error


if __name__ == "__main__":
    serve(OpenVinoGenAI)
