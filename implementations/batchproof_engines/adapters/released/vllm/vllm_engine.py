"""One engine of vLLM in the process of the program: its requests, steps and answers."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import load_file
from serving import Completion, Event, Logprobs, Request, Stepped, biases_of, event_of, siblings, words
from tracing import Tracer
from vllm import LLMEngine, SamplingParams
from vllm.exceptions import VLLMClientError
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

if TYPE_CHECKING:
    from program import VLLM

FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
WAIT_S = 0.001
# The EOS of the tokenizer, which may end any text, and a stop token that is in none: whether one that a
# text contains may be its last token differs between releases of xgrammar.
GRAMMAR_ENDS = (2, 0xFA)


class Engine(Stepped):
    """An engine; a handle is vLLM's own id of a request, or the request until it is added.

    With `n` above 1 requests wait for the next step, which adds those that are siblings as one.
    """

    refusals = (ValueError, TypeError, VLLMClientError)

    def __init__(
        self, engine: LLMEngine, key: str, owner: VLLM, lacks: Sequence[str], is_traced: bool
    ) -> None:
        super().__init__()
        self.key, self._engine, self._owner, self.lacks = key, engine, owner, lacks
        self._held: list[Request] = []
        self._added: dict[str, Sequence[Request]] = {}  # siblings, by the id that vLLM was given
        self._ids = map(str, count())
        self._num_of_several = 0
        self._max_len = engine.model_config.max_model_len
        self._vocab_size = engine.model_config.get_vocab_size()
        self._names: dict[str, str] = {}  # ids of the suite by vLLM's own
        self._prompt_logprobs: dict[str, list[Any]] = {}
        self._adapters: dict[str, LoRARequest] = {}
        self._num_loads = 0
        self._is_updated = False
        core = engine.engine_core.engine_core
        self._tracer = Tracer(core.scheduler, self._names) if is_traced else None

    def renewed(self) -> Engine:
        """Returns the engine as good as new."""
        for each in (self._names, self._added, self._prompt_logprobs):
            each.clear()
        self.take_trace()
        return self

    def is_clean(self) -> bool:
        """Aborts what is left, and returns whether nothing of earlier requests remains."""
        self.resume()
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

    def submit(self, request: Request) -> str | Request:
        if self._owner.n == 1:
            return self._add([request])[0]
        self._held.append(request)
        return request

    def _add_held(self) -> list[Event]:
        """Adds what waits, siblings as one request, and returns the events of the refused."""
        held, self._held = self._held, []
        asked = [
            {**each, **each.get("sampling", {}), "request_id": "", "sampling": {}} for each in held
        ]
        refusals = []
        for places in siblings.siblings_in(asked, self._owner.n, is_greedy_alone=True):
            group = [held[place] for place in places]
            names = [each["request_id"] for each in group]
            try:
                self.live |= zip(names, self._add(group), strict=True)
            except self.refusals as error:
                refusals += [event_of(name, None, "error", str(error)) for name in names]
                for name in names:
                    del self.live[name]
        return refusals

    def _add(self, group: Sequence[Request]) -> list[str]:
        """Gives siblings to vLLM as one request, and returns its ids of them."""
        request = group[0]
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
        if has_grammar and not {*GRAMMAR_ENDS} <= {*request["eos_token_ids"]}:
            raise ValueError(f"a grammar ends with {GRAMMAR_ENDS}, which are not all EOS ids here")
        settings, tokens = _parameters(request, self._vocab_size), {"prompt_token_ids": prompt}
        settings.n = len(group)
        lora = None if adapter is None else self._adapters[adapter]
        given = next(self._ids)
        number: str = self._engine.add_request(given, tokens, settings, lora_request=lora)
        self._added[given] = group
        self._prompt_logprobs |= {each["request_id"]: [] for each in group}
        # So `ParentRequest` calls its children.
        numbers = [f"{place}_{number}" for place in range(len(group))] if len(group) > 1 else [number]
        self._names |= zip(numbers, (each["request_id"] for each in group), strict=True)
        self._num_of_several += len(group) if len(group) > 1 else 0
        return numbers

    def advance(self) -> list[Event]:
        events = self._add_held()
        for output in self._outputs():
            (answer,) = output.outputs
            request = self._added[output.request_id][answer.index]
            name, asked = request["request_id"], request.get("sampling", {}).get("logprobs")
            self._prompt_logprobs[name] += output.prompt_logprobs or ()
            for place, token in enumerate(answer.token_ids):
                event = event_of(name, token)
                if asked is not None and answer.logprobs:
                    event["logprobs"] = _logprobs(token, answer.logprobs[place], asked)
                events.append(event)
            if answer.finish_reason is not None:
                events[-1]["finish_reason"] = answer.finish_reason
                self.live.pop(name, None)
                if self._tracer:
                    self._tracer.note_end(name, len(answer.token_ids))
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

    def pause(self) -> None:
        self._engine.sleep(level=0, mode="keep")

    def resume(self) -> None:
        self._engine.wake_up(tags=["scheduling"])

    def clear_cache(self) -> None:
        """Forgets all; requests in flight are preempted, and computed anew."""
        self._engine.reset_prefix_cache(reset_running_requests=True)

    def update_weights(self, model: str, names: Sequence[str] | None) -> None:
        """Reloads weights as vLLM does for who trains, and clears the prefix cache, as it asks of him.
        Of a layer that it makes of several, it must get all."""
        self._is_updated = True
        tensors = load_file(Path(model, "model.safetensors"))
        wanted = {*tensors} if names is None else {*names}
        for fused in FUSED:
            for name in [each for each in wanted if any(part in each for part in fused)]:
                (part,) = [each for each in fused if each in name]
                wanted |= {name.replace(part, each) for each in fused}
        chosen = iter([(each, tensors[each]) for each in sorted(wanted & tensors.keys())])
        self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": chosen})
        self.clear_cache()

    def cancel(self, handle: str | Request) -> None:
        if isinstance(handle, str):
            self._engine.abort_request([handle], internal=True)
        else:
            self._held.remove(handle)

    def completion(self, request: Request, events: Sequence[Event]) -> Completion:
        answer, asked = super().completion(request, events), request.get("sampling", {})
        if "prompt_logprobs" in asked and answer.get("error") is None:
            given = self._prompt_logprobs[request["request_id"]]
            pairs = zip(request["prompt_token_ids"], given, strict=True)
            num = asked["prompt_logprobs"]
            answer["prompt_logprobs"] = [each and _logprobs(token, each, num) for token, each in pairs]
        return answer

    def take_trace(self) -> list[dict[str, Any]]:
        return self._tracer.take() if self._tracer else []

    def take_counters(self) -> dict[str, int]:
        taken, self._num_of_several = self._num_of_several, 0
        return {siblings.SEVERAL: taken} if self._owner.n > 1 else {}

    def close(self) -> None:
        self._owner.give_back(self)


def _parameters(request: Request, vocab_size: int) -> SamplingParams:
    asked = dict(request.get("sampling", {}))
    asked["temperature"] = asked.get("temperature", 0.0)
    if "logit_bias" in asked:
        asked["logit_bias"] = biases_of(asked)
    stops = asked.pop("stop_token_sequences", ())
    grammar = request.get("grammar")
    if grammar is not None:
        name = {"ebnf": "grammar"}.get(grammar["kind"], grammar["kind"])
        asked["structured_outputs"] = StructuredOutputsParams(**{name: grammar["text"]})
    return SamplingParams(
        **asked,
        max_tokens=request["max_new_tokens"],
        stop_token_ids=[each for each in request["eos_token_ids"] if 0 <= each < vocab_size],
        ignore_eos=True,
        stop=words.stop_texts(stops, vocab_size, start=1),
        detokenize=bool(stops),
        output_kind=RequestOutputKind.DELTA,
    )


def _logprobs(token: int, given: Any, num: int) -> Logprobs:
    """Returns the logprobs of a token; vLLM gives its own beside the likeliest."""
    ranked = sorted((each.rank, key, each.logprob) for key, each in given.items())
    top = [(key, logprob) for rank, key, logprob in ranked if num < 0 or rank <= num]
    return {"logprob": given[token].logprob, "rank": given[token].rank, "top": top}
