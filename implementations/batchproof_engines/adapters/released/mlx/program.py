"""MLX-LM's `BatchGenerator` on a CPU, in process: one `step` is one of its `next`.

Conventions of the library and their sources; they are translated here, and nothing else is:
* EOS ids and stop sequences are one automaton (`StopSequences`); what it matched ends the answer.
* Up to `prefill_batch_size` prompts are fed beside each other, `prefill_step_size` tokens of each.
* Its server checks the numbers of a request (`APIHandler._validate`), `BatchGenerator` does not: a
  value below the server's least is refused here, in the server's words.
* It gives each request a number, so it takes an id that is live; its events could not be told apart.
* `insert` takes ends as `stop_sequences` since 0.32, as `state_machines` in 0.31.2 and 0.31.3; before,
  the caller looks for them, as its server did.
* Most models read `rope_theta` at the top of a config, where transformers 5 does not write it.
"""

from __future__ import annotations

import json
import os
import sys
from functools import lru_cache
from importlib.metadata import version
from inspect import signature
from pathlib import Path
from typing import Any

os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"

import mlx.core as mx
import numpy as np
from mlx_lm.generate import BatchGenerator
from mlx_lm.sample_utils import make_logits_processors, make_sampler
from mlx_lm.utils import load_model

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where `serving` lies
sys.path.append(str(Path(__file__).resolve().parent))
from lifting import lifted
from serving import (
    Event,
    Length,
    Request,
    Sampling,
    Stepped,
    Unsupported,
    biases_of,
    event_of,
    logprobs_of,
    serve,
)

NUM_LOADED = 16  # models kept in memory
PREFILL_BATCH_SIZE = 8  # the library's default
WHOLE = 1 << 30  # a context of the repetition penalty that no request exceeds
LEAST = {"temperature": 0, "top_k": 0, "repetition_penalty": 0, "logprobs": 0}  # as its server says
ROPE = ("lifted", "as-saved")
INSERT = signature(BatchGenerator.insert).parameters
generate = sys.modules["mlx_lm.generate"]  # of the package a function has the name


class MLXLM:
    """The library with its options; `prompts_at_once` is its `prefill_batch_size`."""

    name = "mlx-lm"
    version = version("mlx-lm")
    capabilities = ("stepping", "chunked_prefill", "sampling", "logit_processing", "logprobs")
    sampling_fields = (
        *("temperature", "top_k", "repetition_penalty", "logit_bias"),
        *("stop_token_sequences", "logprobs"),
    )

    def __init__(
        self, *, rope_parameters: str = "lifted", prompts_at_once: int = PREFILL_BATCH_SIZE
    ) -> None:
        if rope_parameters not in ROPE:
            raise ValueError(f"rope_parameters is {rope_parameters!r}: choose one of {', '.join(ROPE)}")
        if prompts_at_once < 1:
            raise ValueError(f"prompts_at_once is {prompts_at_once}, but must be at least 1")
        self._is_lifted = rope_parameters == "lifted"
        self._num_fed = prompts_at_once
        self.sampling_limits = {
            "documented": {"repetition_penalty": [0]},
            "apart": [["repetition_penalty", "logprobs"], ["logit_bias", "logprobs"]],
        }
        rope = (
            "the adapter lifts rope_theta and rope_scaling out of the config's rope_parameters, where "
            "most models do not read them (a finding)"
            if self._is_lifted
            else "rope_parameters stay as transformers 5 saves them: most models do not read them (a "
            "finding)"
        )
        self.notes = [
            f"mlx {version('mlx')} on a CPU, where it computes with one thread",
            rope,
            "max_num_seqs is completion_batch_size; prefill_batch_size is the same, but at most "
            f"{prompts_at_once} ({PREFILL_BATCH_SIZE} by default)",
            Length.note,
        ]

    def build(self, folder: str, dtype: str, config: dict[str, Any], _: int) -> Engine:
        if dtype == "float64":
            raise Unsupported("its fast kernels do not compute in float64")
        given = json.loads(Path(folder, "config.json").read_text(encoding="utf-8"))
        if dtype != "float32" and any("experts" in name for name in given):
            raise Unsupported("on a CPU it multiplies experts in float32 alone (GatherMM)")
        length = Length(folder, config)
        return Engine(_loaded(folder, self._is_lifted), length, config, self._num_fed)


class Engine(Stepped):
    """An engine; a handle is the library's number of a request."""

    def __init__(self, model: Any, length: Length, config: dict[str, Any], num_fed: int) -> None:
        super().__init__()
        self._length = length
        num_seqs = config["max_num_seqs"]
        num_fed = min(num_fed, num_seqs)
        self._generator = BatchGenerator(
            model,
            completion_batch_size=num_seqs,
            prefill_batch_size=num_fed,
            prefill_step_size=max(1, config["max_num_batched_tokens"] // num_fed),
        )
        self._asked: dict[int, Request] = {}  # by number
        self._sought: dict[int, tuple[list[int], list[Any]]] = {}  # tokens and ends, in old releases

    def submit(self, request: Request) -> int:
        asked: Sampling = request.get("sampling", {})
        _check(self._length, request, asked)
        ends = [[each] for each in request["eos_token_ids"]]
        ends += asked.get("stop_token_sequences", ())
        given = _given(ends)
        sampler = None  # the library's default, which is greedy
        if "temperature" in asked:
            sampler = make_sampler(asked["temperature"], top_k=asked.get("top_k", 0))
        penalty = asked.get("repetition_penalty")
        processors = make_logits_processors(biases_of(asked), penalty, repetition_context_size=WHOLE)
        (number,) = self._generator.insert(
            [request["prompt_token_ids"]],
            max_tokens=[request["max_new_tokens"]],
            samplers=[sampler],
            logits_processors=[processors],
            **given,
        )
        self._asked[number] = request
        self._sought[number] = [], [] if given else ends
        return int(number)

    def advance(self) -> list[Event]:
        events = []
        answers = self._generator.next()
        for answer in answers[1] if isinstance(answers, tuple) else answers:
            request = self._asked[answer.uid]
            self._seek_end(answer)
            event = event_of(request["request_id"], answer.token, answer.finish_reason)
            num_top = request.get("sampling", {}).get("logprobs")
            if num_top is not None:
                logprobs = np.array(answer.logprobs.astype(mx.float32))  # numpy has no bfloat16
                event["logprobs"] = logprobs_of(answer.token, logprobs, num_top)
            events.append(event)
            if answer.finish_reason is not None:
                del self._asked[answer.uid], self._sought[answer.uid]
                del self.live[request["request_id"]]
        return events

    def cancel(self, number: int) -> None:
        self._generator.remove([number])
        del self._asked[number], self._sought[number]

    def close(self) -> None:
        if hasattr(self._generator, "close"):
            self._generator.close()

    def _seek_end(self, answer: Any) -> None:
        tokens, ends = self._sought[answer.uid]
        tokens.append(answer.token)
        if any(tokens[-len(end) :] == [*end] for end in ends):
            if answer.finish_reason is None:
                self._generator.remove([answer.uid])
            answer.finish_reason = "stop"


def _given(ends: list[Any]) -> dict[str, Any]:
    """Returns ends as this release of the library takes them, if it takes any."""
    if "stop_sequences" in INSERT:
        return {"stop_sequences": [generate.StopSequences(ends)]}
    if "state_machines" in INSERT:
        ways = {"normal": [(end, None) for end in ends]} if ends else {}
        return {"state_machines": [generate.SequenceStateMachine(ways, "normal")]}
    return {}


def _check(length: Length, request: Request, asked: Sampling) -> None:
    if too_long := length.refusal(request):
        raise ValueError(too_long)
    for name, least in LEAST.items():
        if asked.get(name, least) < least:
            raise ValueError(f"{name} is {asked[name]}, but must be at least {least}")


@lru_cache(NUM_LOADED)
def _loaded(folder: str, is_lifted: bool) -> Any:
    """Returns the model, read by the library. Raises `Unsupported`."""
    path = Path(folder)
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    try:
        model, _ = load_model(path, model_config=lifted(config) if is_lifted else None)
    except (ValueError, NotImplementedError, KeyError, TypeError, AttributeError) as error:
        raise Unsupported(f"load_model says {str(error).splitlines()[0]}") from error
    return model


if __name__ == "__main__":
    serve(MLXLM)
