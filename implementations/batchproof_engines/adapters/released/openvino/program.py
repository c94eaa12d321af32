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
* Requests are numbers to the library. An id that is used again keeps its number, even while it is live.

A model is converted by optimum's documented export: stateful, its weights in float32.
"""

from __future__ import annotations

import math
import secrets
import sys
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where `serving` lies
from serving import (
    Completion,
    Event,
    Length,
    Live,
    Request,
    Unsupported,
    completion_of,
    event_of,
    made_once,
    refused,
    serve,
)

NGRAM_SIZE = 3  # the longest that a prompt lookup looks for
BYTES = "bytes"  # the folder of a checkpoint's tokenizer of bytes
BLOCK_SIZE = 32  # tokens in one block of the library's pool, on a CPU
PRECISIONS = {"float32": "f32", "default": None}  # None: the library's own choice
PARAMETERS = {  # the protocol's name and the library's
    **dict.fromkeys(("temperature", "top_k", "top_p", "min_p")),
    "seed": "rng_seed",
    **dict.fromkeys(("repetition_penalty", "presence_penalty", "frequency_penalty")),
    "min_tokens": "min_new_tokens",
}
# Not "json_schema": the library lets JSON have any white space, and there is no switch.
GRAMMARS = {"regex": "regex", "ebnf": "grammar"}  # the protocol's name and the library's
REASONS = {genai.GenerationFinishReason.STOP: "stop", genai.GenerationFinishReason.LENGTH: "length"}
GIVEN_UP = "the library gave the request up: GenerationStatus.IGNORED, out of cache"
SILENCE = "the library gave no token and no status of it"


class OpenVinoGenAI:
    """The library with its options.

    `precision` is that of the computation, `kv_cache` that of keys and values (by default `precision`).
    `prefix_caching` overrides a configuration; `dynamic_split_fuse` is not in one.
    """

    name = "openvino-genai"

    def __init__(
        self,
        precision: str = "float32",
        kv_cache: str | None = None,
        prefix_caching: bool | None = None,
        dynamic_split_fuse: bool = True,
    ) -> None:
        kv_cache = kv_cache or precision
        if not {precision, kv_cache} <= PRECISIONS.keys():
            raise ValueError(f"precision {precision!r}, kv_cache {kv_cache!r}: not in {[*PRECISIONS]}")
        hints = {"INFERENCE_PRECISION_HINT": precision, "KV_CACHE_PRECISION": kv_cache}
        self._properties = {hint: PRECISIONS[each] for hint, each in hints.items() if PRECISIONS[each]}
        self._overrides = {
            "enable_prefix_caching": prefix_caching,
            "dynamic_split_fuse": dynamic_split_fuse,
        }
        self.version = version("openvino-genai")
        self.capabilities = ["stepping", "preemption", *["chunked_prefill"] * dynamic_split_fuse]
        self.capabilities += ["sampling", "seeded_sampling", "logit_processing", "speculation"]
        self.capabilities.append("structured")
        self.grammar_kinds = [*GRAMMARS]
        self.sampling_fields = list(PARAMETERS)
        self.sampling_limits = {"ranges": {"min_p": (0.0, math.nextafter(1.0, 0.0))}}  # below 1
        given = [f"{name} is {value}" for name, value in self._overrides.items() if value is not None]
        self.notes = [
            f"precision of the computation: {precision}, of the keys and values: {kv_cache}",
            f"the settings override each configuration: {', '.join(given)}",
            "a pool is rounded up to blocks of 32 tokens; without num_blocks it grows as needed",
            Length.note,
            "dynamic_split_fuse, the library's default, keeps no max_num_seqs; without it a step "
            "has room for the longest prompt",
            "each request names its own cap and EOS ids; one without EOS ids says ignore_eos, as the "
            "library would add the model's; one below 0, which it refuses, is left out",
            "an EOS is part of the output",
            "the requests of a call are added one by one, so that each refusal has its own words, and "
            "all of them before the first step",
            "a request that the library ends as IGNORED, out of cache, is told as refused",
            "an id is a number to the library, the same one when it is used again",
            "drafts come from a draft_model, or without one from prompt_lookup, with n-grams of up to "
            f"{NGRAM_SIZE} tokens; a draft has the library's default scheduler",
            "an abort is the handle's cancel",
        ]

    def build(
        self,
        folder: str,
        dtype: str,
        config: dict[str, Any],
        num_threads: int,
        draft: str | None = None,
    ) -> Pipeline:
        """Returns an engine for the checkpoint, which is converted if necessary, and so is the draft's.
        Raises `Unsupported`."""
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
        pipeline = genai.ContinuousBatchingPipeline(model, limits, "CPU", properties | drafting)
        lacks = () if Path(folder, BYTES).is_dir() else ("structured",)
        return Pipeline(pipeline, length, num_drafts, lacks)


class Pipeline:
    """An engine; `_live` are the requests whose end has not been reported yet."""

    def __init__(
        self,
        pipeline: genai.ContinuousBatchingPipeline,
        length: Length,
        num_drafts: int | None,
        lacks: Sequence[str],
    ) -> None:
        self._pipeline, self.lacks = pipeline, lacks
        self._num_drafts = num_drafts
        self._length = length
        self._numbers: dict[str, int] = {}
        self._live: dict[str, genai.GenerationHandle] = {}
        # Held for a step, because dropping a handle stops its request.
        self._aborted: list[genai.GenerationHandle] = []
        self._undelivered: list[Event] = []

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Returns one completion per request, after adding all of them before the first step."""
        handles = [self._submitted(request) for request in requests]
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        return [_completion(request, handle) for request, handle in zip(requests, handles, strict=True)]

    def add(self, request: Request) -> None:
        """Adds a request. Raises `Live`: the library would accept a live id, but its events could not
        be told apart."""
        request_id = request["request_id"]
        if request_id in self._live:
            raise Live
        handle = self._submitted(request)
        if isinstance(handle, Exception):
            self._undelivered.append(event_of(request_id, None, "error", str(handle)))
        else:
            self._live[request_id] = handle

    def step(self) -> list[Event]:
        """Runs one step of the library, if it has work, and returns the events."""
        events, self._undelivered = self._undelivered, []
        if self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        self._aborted.clear()
        for request_id, handle in list(self._live.items()):
            events += _news(request_id, handle)
            if handle.get_status() != genai.GenerationStatus.RUNNING:
                del self._live[request_id]
        return events

    def abort(self, request_id: str) -> None:
        """Ends a live request; an unknown id has no effect."""
        handle = self._live.pop(request_id, None)
        if handle is not None:
            handle.cancel()
            self._aborted.append(handle)

    def has_unfinished(self) -> bool:
        """Returns whether there is work; the library counts an aborted request until its next step."""
        return bool(self._live or self._undelivered or self._pipeline.has_non_finished_requests())

    def close(self) -> None:
        del self._live, self._aborted, self._pipeline

    def _submitted(self, request: Request) -> genai.GenerationHandle | Exception:
        """Returns the library's handle of the request, or the error with which it was refused."""
        refusal = self._length.refusal(request)
        if refusal is not None:
            return ValueError(refusal)
        number = self._numbers.setdefault(request["request_id"], len(self._numbers))
        try:
            prompt = np.array([request["prompt_token_ids"]], dtype=np.int64)
            return self._pipeline.add_request(number, ov.Tensor(prompt), self._settings(request))
        except (RuntimeError, TypeError, ValueError, OverflowError) as error:
            return error

    def _settings(self, request: Request) -> genai.GenerationConfig:
        settings = genai.GenerationConfig()
        settings.max_new_tokens = request["max_new_tokens"]
        ends = {token for token in request["eos_token_ids"] if token >= 0}
        settings.ignore_eos = not ends
        settings.stop_token_ids = ends or {0}
        settings.eos_token_id = min(settings.stop_token_ids)
        if self._num_drafts:
            settings.num_assistant_tokens = self._num_drafts
            settings.max_ngram_size = NGRAM_SIZE
        asked = request.get("sampling", {})
        settings.do_sample = "temperature" in asked
        settings.rng_seed = secrets.randbits(32)
        for name, value in asked.items():
            # Without EOS ids a least length means nothing, and would ban the one that stands for none.
            if name != "min_tokens" or ends or value > request["max_new_tokens"]:
                setattr(settings, PARAMETERS[name] or name, value)
        grammar = request.get("grammar")
        if grammar is not None:
            if not ends or grammar["kind"] not in GRAMMARS:
                raise ValueError(f"{grammar}: without an EOS id, or of a kind not in {[*GRAMMARS]}")
            kind = {GRAMMARS[grammar["kind"]]: grammar["text"]}
            settings.structured_output_config = genai.StructuredOutputConfig(**kind)
        return settings


def _completion(request: Request, handle: genai.GenerationHandle | Exception) -> Completion:
    if isinstance(handle, Exception):
        return refused(request, handle)
    events = _news(request["request_id"], handle)
    return completion_of(request, events) if events else refused(request, SILENCE)


def _news(request_id: str, handle: genai.GenerationHandle) -> list[Event]:
    """Returns an event for each token that has not been read yet."""
    events = []
    while handle.can_read():
        for output in handle.read().values():
            events += [event_of(request_id, token) for token in output.generated_ids]
            if events:
                events[-1]["finish_reason"] = REASONS.get(output.finish_reason)
    if handle.get_status() == genai.GenerationStatus.IGNORED:
        events.append(event_of(request_id, None, "error", GIVEN_UP))
    return events


def _converted(folder: str) -> Path:
    """Returns the folder of the converted model inside the checkpoint's, made when it is first
    needed."""
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
