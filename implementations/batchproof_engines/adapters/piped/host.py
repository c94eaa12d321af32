"""An engine of Python at the far end of a pipe: `batchproof host ENGINE` gives it a process of its own.

So an engine shares neither clock nor memory with what measures it. It gets the model from the
checkpoint that the near end has written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from batchproof.api import Completion, EngineConfig, EngineFactory, Request, TokenEvent, TokenLogprobs
from batchproof.errors import UnsupportedModelError
from batchproof.workload.sampling_values import sampling_params
from batchproof_engines.adapters.piped import protocol
from batchproof_engines.adapters.released import serving

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass
class Hosted:
    """The engine as a library of `serving.py`; it declares those capabilities that the protocol has."""

    name: str
    factory: EngineFactory
    capabilities: Sequence[str]
    sampling_fields: Sequence[str]
    sampling_limits: Mapping[str, Any]
    block_size_multiple: int
    device: str
    version: str = "in a process of its own"
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        self.capabilities = [each for each in self.capabilities if each in protocol.CAPABILITIES]

    def build(
        self,
        folder: str,
        dtype: str,
        config: dict[str, Any],
        num_threads: int,
        draft: str | None = None,  # noqa: ARG002 - the engine makes it of the model, as `config` says
    ) -> HostedEngine:
        """Returns an engine. Raises `Unsupported` for a model that it refuses."""
        import torch  # noqa: PLC0415 - the near end imports this package, and needs none of it

        torch.set_num_threads(num_threads)
        try:
            engine = self.factory(_loaded(folder, dtype, self.device), EngineConfig(**config))
        except UnsupportedModelError as why:
            raise serving.Unsupported(str(why)) from why
        return HostedEngine(engine, protocol.TRACING in self.capabilities)


class HostedEngine:
    """An engine in the terms of the protocol."""

    def __init__(self, engine: Any, is_traced: bool) -> None:
        self._engine = engine
        self._is_traced = is_traced
        self._num_told = 0  # records

    def take_trace(self) -> list[dict[str, Any]]:
        """Returns the records of the steps since the last call."""
        if not self._is_traced:
            return []
        new = [asdict(each) for each in self._engine.trace[self._num_told :]]
        self._num_told += len(new)
        return new

    def generate(self, requests: Sequence[protocol.Request]) -> list[dict[str, Any]]:
        """Returns one completion per request, as the engine gives them."""
        return [_completion(each) for each in self._engine.generate(list(map(_request, requests)))]

    def add(self, request: protocol.Request) -> None:
        """Adds a request. Raises `Live` where the engine raises `ValueError`."""
        try:
            self._engine.add(_request(request))
        except ValueError as error:
            raise serving.Live(str(error)) from error

    def step(self) -> list[dict[str, Any]]:
        return [_event(each) for each in self._engine.step()]

    def abort(self, request_id: str) -> None:
        self._engine.abort(request_id)

    def has_unfinished(self) -> bool:
        return bool(self._engine.has_unfinished)

    def close(self) -> None:
        if hasattr(self._engine, "close"):
            self._engine.close()


def _request(given: protocol.Request) -> Request:
    prompt, eos = tuple(given["prompt_token_ids"]), frozenset(given["eos_token_ids"])
    sampling = sampling_params(given["sampling"]) if "sampling" in given else None
    return Request(given["request_id"], prompt, given["max_new_tokens"], eos, sampling)


def _completion(given: Completion) -> dict[str, Any]:
    return {
        "request_id": given.request_id,
        "token_ids": given.token_ids,
        "finish_reason": given.finish_reason,
        "error": given.error,
        "logprobs": _each(given.logprobs),
        "prompt_logprobs": _each(given.prompt_logprobs),
    }


def _event(given: TokenEvent) -> dict[str, Any]:
    return given._asdict() | {"logprobs": _logprobs(given.logprobs)}


def _each(given: Sequence[TokenLogprobs | None] | None) -> Any:
    return None if given is None else [_logprobs(each) for each in given]


def _logprobs(given: TokenLogprobs | None) -> dict[str, Any] | None:
    return None if given is None else given._asdict()


@cache
def _loaded(folder: str, dtype: str, device: str) -> PreTrainedModel:
    import torch  # noqa: PLC0415 - as above
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    loaded: PreTrainedModel = model.to(device).eval().requires_grad_(False)
    return loaded
