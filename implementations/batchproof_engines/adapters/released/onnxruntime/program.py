"""ONNX Runtime GenAI behind a pipe (`docs/piped_engines.md`), on a CPU.

Requests come and go; one `run` of the library's `Engine` is one step. On a CPU its batches are static:
the next one starts when all requests of one have ended.

EOS ids belong to a model: each has a model and an engine of its own, on the same files. A model always
has an EOS: a request that does not end at it continues as a new one, with the tokens it has so far.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_genai as og

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where `serving` lies
from serving import Event, Request, Stepped, Unsupported, event_of, made_once, serve

NUM_LOADED = 64  # models kept in memory
NUM_EVENTS = 64  # at most, of one run
SOME_ID = 0  # the EOS of a model for requests that have none or several: it must have one
TOKEN, FINISHED, FAILED = (
    int(og.EngineEventFlags.TOKEN),
    int(og.EngineEventFlags.TURN_FINISHED),
    int(og.EngineEventFlags.FAILED),
)
DRAWN = ("temperature", "top_k", "top_p")  # of a turn; a seed needs dynamic batching, so a GPU


class OnnxRuntimeGenAI:
    """The library with the builder's option: a cache for each layer no longer than its window."""

    name = "onnxruntime"
    version = f"genai {og.__version__}"
    capabilities = ("stepping", "sampling", "logit_processing")
    sampling_fields = (*DRAWN, "repetition_penalty")

    def __init__(self, *, windowed_kv_cache: bool = True) -> None:
        self.has_windowed_cache = windowed_kv_cache
        self.notes = [
            "Converted with precision fp32 for the CPU, where the cache holds float32, and with "
            f"windowed_kv_cache={windowed_kv_cache}, the builder's own choice being True.",
            f"A model has at least one EOS id: the others share an engine whose EOS is {SOME_ID}. One "
            "that does not end there goes on as a new request with what it has so far, and one that "
            "has reached an EOS of its own is ended by the adapter.",
        ]

    def build(self, folder: str, dtype: str, config: dict[str, Any], num_threads: int) -> RequestEngine:
        if dtype != "float32":
            raise Unsupported(f"it is converted in float32 here, and the model is in {dtype}")
        target = Path(folder, self.name + ("" if self.has_windowed_cache else "-long-cache"))
        converted = made_once(target, partial(_convert, Path(folder), self.has_windowed_cache))
        return RequestEngine(converted, config, num_threads)


@dataclass
class Turn:
    """A request whose last event is still to come."""

    request: Request
    handle: og.Request
    known_eos: int
    tokens: list[int]

    def read(self, event: og.EngineEvent) -> Event | None:
        """Returns the event in the terms of the protocol, or None if it has neither token nor end.

        The library's events do not include an EOS that the library itself has found.
        """
        name, eos, flags = self.request["request_id"], self.request["eos_token_ids"], int(event.flags)
        if flags & FAILED:
            return event_of(name, None, "error", event.error_code.name)
        has_found_eos = bool(flags & FINISHED) and event.finish_reason == og.FinishReason.EOS
        if has_found_eos:
            token = self.known_eos
        elif flags & TOKEN:
            token = event.token
        elif flags & FINISHED:
            why = f"finished without a token: {event.finish_reason.name}"
            return event_of(name, None, "error", why)
        else:
            return None
        self.tokens.append(token)
        if token in eos:
            return event_of(name, token, "stop")
        # An EOS of none of the request's own ends the library's turn, but not the answer.
        is_full = len(self.tokens) >= self.request["max_new_tokens"]
        is_last = is_full if has_found_eos else bool(flags & FINISHED)
        return event_of(name, token, "length" if is_last else None)


class RequestEngine(Stepped):
    """Steps requests through one engine of the library for each EOS id that a model is given; a handle
    is a `Turn`."""

    refusals = (RuntimeError, ValueError, TypeError)

    def __init__(self, converted: Path, config: dict[str, Any], num_threads: int) -> None:
        super().__init__()
        self._converted = converted
        self._num_threads = num_threads
        self._batch_size = config["max_num_seqs"]
        self._session_tokens = config["max_model_len"]
        self._engines: dict[int, og.Engine] = {}

    def submit(self, request: Request) -> Turn:
        return self._begun(request, [])

    def advance(self) -> list[Event]:
        """Runs each engine once. Raises `RuntimeError` if live requests get no work."""
        events: list[Event] = []
        at_work = [engine for engine in self._engines.values() if engine.has_pending_requests()]
        if not at_work:
            raise RuntimeError(f"the engine has no work, but has not answered {sorted(self.live)}")
        for engine in at_work:
            for news in engine.run(engine.create_event_buffer(NUM_EVENTS)):
                turn = next((each for each in self.live.values() if each.handle == news.request), None)
                event = turn.read(news) if turn is not None else None
                if turn is None or event is None:
                    continue
                events.append(event)
                if event["finish_reason"] is not None:
                    self.abort(event["request_id"])
                elif int(news.flags) & FINISHED:
                    self.abort(event["request_id"])
                    events += self._continued(turn)
        return events

    def cancel(self, turn: Turn) -> None:
        turn.handle.close()

    def close(self) -> None:
        for name in list(self.live):
            self.abort(name)

    def _continued(self, turn: Turn) -> list[Event]:
        """Starts the rest of an answer as a new request; returns the event of one that is refused."""
        name = turn.request["request_id"]
        try:
            self.live[name] = self._begun(turn.request, turn.tokens)
        except self.refusals as error:
            return [event_of(name, None, "error", str(error))]
        return []

    def _begun(self, request: Request, tokens: list[int]) -> Turn:
        """Starts the request, to continue after `tokens`. Raises one of `refusals`."""
        if request["max_new_tokens"] == 0:
            raise ValueError("max_new_tokens is 0, but must be at least 1")
        options = og.RequestOptions()
        if self._session_tokens is not None:
            options.set_max_session_tokens(self._session_tokens)
        own = request["eos_token_ids"]
        eos = own[0] if len(own) == 1 else SOME_ID
        handle = self._engine(eos).create_request(options=options)
        turn = og.TurnOptions(handle)
        for parameter, value in _parameters(request).items():
            getattr(turn, f"set_{parameter}")(value)
        turn.set_max_generated_tokens(request["max_new_tokens"] - len(tokens))
        fed = [*request["prompt_token_ids"], *tokens]
        handle.begin_turn(np.array(fed, dtype=np.int32), turn)
        return Turn(request, handle, eos, tokens)

    def _engine(self, eos: int) -> og.Engine:
        if eos not in self._engines:
            session = {"intra_op_num_threads": self._num_threads}
            model = {"eos_token_id": eos, "decoder": {"session_options": session}}
            batching = {"static_batching": {"max_batch_size": self._batch_size}}
            overlay = json.dumps({"model": model, "engine": batching})
            self._engines[eos] = og.Engine(_loaded(self._converted, overlay))
        return self._engines[eos]


def _parameters(request: Request) -> dict[str, Any]:
    """Returns what is set of a turn: all of it, as the model's own top_k is 50 where none is set."""
    asked = request.get("sampling", {})
    penalty = {"repetition_penalty": asked.get("repetition_penalty", 1.0)}
    if "temperature" not in asked or asked.get("top_k") == 1:  # a temperature beside is a contradiction
        return penalty | {"do_sample": False}
    drawn = {"top_k": 0, "top_p": 1.0} | {name: asked[name] for name in DRAWN if name in asked}
    return penalty | drawn | {"do_sample": True}


@lru_cache(NUM_LOADED)
def _loaded(converted: Path, overlay: str) -> og.Model:
    config = og.Config(str(converted))
    config.overlay(overlay)
    return og.Model(config)


def _convert(folder: Path, has_windowed_cache: bool, made: Path) -> None:
    given = made.with_name("given")
    _with_special_tokens(folder, given)
    try:
        _build(given, made, has_windowed_cache)
    except (NotImplementedError, ValueError, AttributeError, KeyError) as error:
        raise Unsupported(f"its builder says {error!r}") from error


def _with_special_tokens(folder: Path, given: Path) -> None:
    """Copies the checkpoint with special tokens, which the builder requires but only copies."""
    given.mkdir()
    for path in (*folder.glob("*.safetensors*"), *folder.glob("tokenizer*")):
        (given / path.name).symlink_to(path.resolve())
    config = json.loads((folder / "config.json").read_text())
    special = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), SOME_ID)
    (given / "config.json").write_text(json.dumps(config | special))


def _build(given: Path, made: Path, has_windowed_cache: bool) -> None:
    import onnxruntime_genai.models  # noqa: F401, PLC0415 (it puts the builder's folder on the path)
    from builder import create_model, parse_extra_options  # noqa: PLC0415

    where = ("", str(given), str(made), "fp32", "cpu", str(given / "cache"))
    create_model(*where, **parse_extra_options(*where, [f"windowed_kv_cache={has_windowed_cache}"]))


if __name__ == "__main__":
    serve(OnnxRuntimeGenAI)
