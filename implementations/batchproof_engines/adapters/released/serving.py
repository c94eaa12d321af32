"""The far end of the pipe (`docs/piped_engines.md`), shared by the programs of the released engines.

These programs run in virtual environments of their own, without Batchproof: this module uses the
standard library and `adapters/piped/protocol.py` only, on Python 3.10 or later. A program is

    serve(MyLibrary)

with a class like `Library` below, which is created once with the options in the program's first
argument, a JSON object.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol, get_args


def _load(name: str) -> Any:
    """Loads a module of `adapters` by its path, because the package cannot be imported here."""
    path = Path(__file__).resolve().parents[1] / f"{name}.py"
    spec = spec_from_file_location(f"batchproof_{path.stem}", path)
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


protocol, siblings, words = map(_load, ("piped/protocol", "siblings", "word_tokenizer"))
# JSON objects, with the fields that `docs/piped_engines.md` shows for messages of these names.
Request = Sampling = Completion = Event = Logprobs = dict[str, Any]


class Unsupported(Exception):
    """Raised by `build` with the reason why this model or configuration would be answered wrongly."""


class Live(Exception):
    """Raised by `add`: a request with that id is live."""


class Library(Protocol):
    """A released engine. `notes` are its conventions and settings, in sentences for the verdict. One
    with `sampling_fields` takes only these of `SamplingParams`, and one with `sampling_limits`
    (`SamplingLimits`, as a dict) only such values of them."""

    name: str
    version: str
    notes: Sequence[str]
    capabilities: Sequence[str]

    def build(self, folder: str, dtype: str, config: dict[str, Any], num_threads: int) -> Any:
        """Returns an engine for the checkpoint in `folder`; `config` has the fields of `EngineConfig`.
        The engine computes with `num_threads` threads. A library that says "speculation" takes the
        keyword `draft`, too: the folder of the draft's checkpoint, or None.

        An engine has `generate(requests)`, which returns one completion per request, in order, and
        `close()`. It also has `add`, `step`, `abort` and `has_unfinished` if the library says
        "stepping", and `take_trace()`, which returns the records (`StepRecord`, as dicts) of the
        steps since its last call, if it says "tracing", and `load_adapter(name, path)` and
        `unload_adapter(name)` if it says "adapters", and the methods of what it says of its lifecycle;
        `update_weights(model, names)` gets the folder of a checkpoint. Arguments are given by the names
        of the protocol's fields. It may have `take_counters()`:
        what a verdict should count since the last call, by name. Its `lacks` are those of the library's
        capabilities that it has not with this model.

        Raises `Unsupported`.
        """


def refused(request: Request, error: object) -> Completion:
    return {
        "request_id": request["request_id"],
        "token_ids": [],
        "finish_reason": "error",
        "error": str(error),
    }


def event_of(
    request_id: str, token_id: int | None, reason: str | None = None, error: str | None = None
) -> Event:
    """Returns an event; without a reason it is not the last of its request."""
    return {"request_id": request_id, "token_id": token_id, "finish_reason": reason, "error": error}


def completion_of(request: Request, events: Sequence[Event]) -> Completion:
    """Returns the completion that consists of all events of a request, with the logprobs that they
    have."""
    last = events[-1]
    if last["error"] is not None:
        return refused(request, last["error"])
    completion = {
        "request_id": request["request_id"],
        "token_ids": [event["token_id"] for event in events],
        "finish_reason": last["finish_reason"],
    }
    if any("logprobs" in event for event in events):
        completion["logprobs"] = [event.get("logprobs") for event in events]
    return completion


def biases_of(asked: Sampling) -> dict[int, float]:
    biases: dict[int, float] = {}
    for token, bias in asked.get("logit_bias", ()):
        biases[token] = biases.get(token, 0.0) + bias
    return biases


def logprobs_of(token: int, values: Any, num_top: int) -> Logprobs:
    """Returns the logprobs of a token and of the likeliest. `values`: those of all tokens, (vocab,), an
    array of numpy."""
    likeliest = (-values).argsort(kind="stable")[:num_top]
    return {
        "logprob": float(values[token]),
        "rank": int((values > values[token]).sum()) + 1,
        "top": [(int(each), float(values[each])) for each in likeliest],
    }


class Stepped:
    """An engine whose library advances all of its requests by a step. A subclass gives the three
    methods that only raise here. `live` holds its handles of the requests without an end, by id."""

    refusals: tuple[type[Exception], ...] = (ValueError, TypeError)  # what `submit` raises

    def __init__(self) -> None:
        self.live: dict[str, Any] = {}
        self.undelivered: list[Event] = []

    def submit(self, request: Request) -> Any:
        """Gives a request to the library and returns its handle. Raises one of `refusals`."""
        raise NotImplementedError

    def advance(self) -> list[Event]:
        """Runs one step, takes whoever has ended out of `live`, and returns the events."""
        raise NotImplementedError

    def cancel(self, handle: Any) -> None:
        """Ends a live request."""
        raise NotImplementedError

    def completion(self, request: Request, events: Sequence[Event]) -> Completion:
        return completion_of(request, events)

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Returns one completion per request, after adding all of them before the first step."""
        refusals: list[object] = []
        for request in requests:
            try:
                self.add(request)
            except Live:
                refusals.append(f"request_id {request['request_id']!r} is used twice in this call")
            else:
                refusals.append(self.undelivered.pop()["error"] if self.undelivered else None)
        told: dict[str, list[Event]] = {name: [] for name in self.live}
        while self.live:
            for event in self.advance():
                told[event["request_id"]].append(event)
        return [
            self.completion(request, told[request["request_id"]])
            if refusal is None
            else refused(request, refusal)
            for request, refusal in zip(requests, refusals, strict=True)
        ]

    def add(self, request: Request) -> None:
        """Adds a request. Raises `Live`: events of two with one id could not be told apart."""
        name = request["request_id"]
        if name in self.live:
            raise Live
        try:
            self.live[name] = self.submit(request)
        except self.refusals as error:
            self.undelivered.append(event_of(name, None, "error", str(error)))

    @property
    def has_work(self) -> bool:
        """Returns whether the library has a step to run."""
        return bool(self.live)

    def step(self) -> list[Event]:
        """Runs one step of the library, if it has work, and returns the events."""
        events, self.undelivered = self.undelivered, []
        return events + (self.advance() if self.has_work else [])

    def abort(self, request_id: str) -> None:
        if request_id in self.live:
            self.cancel(self.live.pop(request_id))

    def has_unfinished(self) -> bool:
        return self.has_work or bool(self.undelivered)


def in_calls(
    requests: Sequence[Request],
    refusals: Sequence[str | None],
    what_is_shared: Callable[[Request], Any],
    answer: Callable[[Sequence[Request]], Sequence[Any]],
) -> list[Any]:
    """Returns what `answer` makes of the requests, in calls of all that share the same settings, and a
    `ValueError` for each that has a refusal.

    A request with a cap below 1 is a call of its own, for libraries whose calls have one greatest
    length.
    """

    def shared(index: int) -> tuple[int, Any]:
        alone = index + 1 if requests[index]["max_new_tokens"] < 1 else 0
        return alone, what_is_shared(requests[index])

    answers: list[Any] = [ValueError(refusal) for refusal in refusals]
    asked = sorted((i for i, refusal in enumerate(refusals) if refusal is None), key=shared)
    for _, group in groupby(asked, shared):
        call = list(group)
        for index, one in zip(call, answer([requests[index] for index in call]), strict=True):
            answers[index] = one
    return answers


def made_once(target: Path, make: Callable[[Path], object]) -> Path:
    """Returns the folder, which `make` creates when it is first needed; it appears whole or not at
    all."""
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            made = Path(scratch, target.name)
            make(made)
            try:
                os.rename(made, target)
            except OSError:
                if not target.exists():  # otherwise another process was faster
                    raise
    return target


class Length:
    """Keeps `max_model_len` on behalf of a library without such a limit.

    It refuses what only that limit forbids. Requests beyond the model's own positions are left for the
    library to refuse.
    """

    note = "max_model_len has no counterpart there: what it alone forbids is refused by the adapter"

    def __init__(self, folder: str, config: dict[str, Any]) -> None:
        given = json.loads(Path(folder, "config.json").read_text(encoding="utf-8"))
        sizes = given.get("text_config", given)
        self._positions = sizes.get("max_position_embeddings", sizes.get("n_positions", sys.maxsize))
        self._limit = config["max_model_len"]

    @property
    def longest(self) -> int:
        """Returns how many tokens a request that is not refused has at most."""
        return min(self._positions, self._limit or self._positions)

    def refusal(self, request: Request) -> str | None:
        """Returns why the request is refused, or None."""
        prompt, cap = len(request["prompt_token_ids"]), request["max_new_tokens"]
        if self._limit is None or not self._limit < prompt + cap <= self._positions:
            return None
        return f"{prompt} prompt tokens + max_new_tokens {cap}, above max_model_len {self._limit}"


def serve(library: Callable[..., Library]) -> None:
    """Answers the questions on stdin until it is closed. The options are those of the command line."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # anything a library prints goes to stderr: stdout is for answers only
    options = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
    made: Library | None = None
    engines: dict[int, Any] = {}
    for line in sys.stdin:
        try:
            # Created for the first question, so that wrong options become the answer to it.
            made = made or library(**_of_their_kinds(library, options))
            answer = _answer(made, engines, json.loads(line))
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


_KINDS = {bool: "true or false", int: "a whole number", str: "a text"}


def _of_their_kinds(library: Callable[..., Library], options: dict[str, Any]) -> dict[str, Any]:
    """Returns the options. Raises `ValueError` for one that is of no kind that the library names."""
    parameters = inspect.signature(library, eval_str=True).parameters
    for name, value in options.items():
        kind = parameters[name].annotation if name in parameters else inspect.Parameter.empty
        kinds = [each for each in get_args(kind) or (kind,) if each in _KINDS]
        if kinds and type(value) not in kinds:
            rule = " or ".join(_KINDS[each] for each in kinds)
            raise ValueError(f"{name} is {value!r}, but must be {rule}")
    return options


def _answer(library: Library, engines: dict[int, Any], question: dict[str, Any]) -> dict[str, Any]:
    """Returns the answer to a question of the suite by the library or by one of its engines, by their
    numbers. Exceptions pass through."""
    op, number = question["op"], question.get("engine", 0)
    if op not in protocol.ANSWERS:
        raise ValueError(f"unknown op {op!r}: choose one of {', '.join(protocol.ANSWERS)}")
    fields = protocol.ANSWERS[op]
    if op == "hello":
        if question["protocol"] != protocol.VERSION:
            raise ValueError(
                f"protocol {question['protocol']!r} is unknown: this is {protocol.VERSION}"
            )
        return {name: getattr(library, name) for name in fields if hasattr(library, name)}
    if op == "build":
        given = [question[each] for each in ("model", "dtype", "config", "threads")]
        more = {"draft": question["draft"]} if "draft" in question else {}
        try:
            engines[number] = library.build(*given, **more)
        except Unsupported as why:
            return {"unsupported": str(why)}
        lacks = getattr(engines[number], "lacks", ())
        return {"lacks": [*lacks]} if lacks else {}
    engine = engines.pop(number) if op == "close" else engines[number]
    given = {name: value for name, value in question.items() if name not in ("op", "engine")}
    try:
        result = getattr(engine, op)(**given)
    except Live:
        return {"live": True}
    answer = {} if result is None else {fields[0]: result}
    for name in (each for each in fields[1:] if hasattr(engine, f"take_{each}")):
        answer[name] = getattr(engine, f"take_{name}")()
    return answer
