"""The far end of the pipe (`docs/piped_engines.md`), shared by the programs beside it.

These programs run in virtual environments of their own, which know nothing of Batchproof: here is
the standard library alone, in Python 3.10 or later. A program is

    serve(Program)

with a class like `Library` below, made once from the options in its first argument, a JSON object.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

Request = dict[str, Any]  # request_id, prompt_token_ids, max_new_tokens, eos_token_ids
Completion = dict[str, Any]
Event = dict[str, Any]


class Unsupported(Exception):
    """Raised by `build`: why this model or configuration would be answered wrongly."""


class Live(Exception):
    """Raised by `add`: the request's id is live."""


class Engine(Protocol):
    """`add`, `step`, `abort` and `has_unfinished` as well, where the library says "stepping"."""

    def generate(self, requests: Sequence[Request]) -> list[Completion]: ...

    def close(self) -> None: ...


class Library(Protocol):
    """One released engine. `notes`: its conventions and settings in sentences, for the verdict."""

    name: str
    version: str
    notes: Sequence[str]
    capabilities: ClassVar[Sequence[str]]

    def build(self, folder: str, dtype: str, config: dict[str, Any]) -> Any: ...


def completed(request: Request, token_ids: Sequence[int]) -> Completion:
    """With the reason that the contract gives: `stop` where the last token is an EOS."""
    tokens = [int(token) for token in token_ids]
    is_stopped = bool(tokens) and tokens[-1] in request["eos_token_ids"]
    return {
        "request_id": request["request_id"],
        "token_ids": tokens,
        "finish_reason": "stop" if is_stopped else "length",
    }


def refused(request: Request, error: object) -> Completion:
    return {
        "request_id": request["request_id"],
        "token_ids": [],
        "finish_reason": "error",
        "error": str(error),
    }


class Length:
    """`max_model_len` for a library that knows no such limit: what only that forbids is refused on its
    behalf. What the model itself has no positions for is the library's to refuse."""

    note = "max_model_len has no counterpart there: what it alone forbids is refused by the adapter"

    def __init__(self, folder: str, config: dict[str, Any]) -> None:
        given = json.loads(Path(folder, "config.json").read_text(encoding="utf-8"))
        sizes = given.get("text_config", given)
        self._positions = sizes.get("max_position_embeddings", sizes.get("n_positions", sys.maxsize))
        self._limit = config["max_model_len"]

    def refusal(self, request: Request) -> str | None:
        prompt, cap = len(request["prompt_token_ids"]), request["max_new_tokens"]
        if self._limit is None or not self._limit < prompt + cap <= self._positions:
            return None
        return f"{prompt} prompt tokens + max_new_tokens {cap}, above max_model_len {self._limit}"


def serve(library: Callable[..., Library]) -> None:
    """Answers until stdin is closed."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints goes to stderr: stdout is for answers alone
    options = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
    desk: _Desk | None = None
    for line in sys.stdin:
        try:
            desk = desk or _Desk(library(**options))  # wrong options are the answer to hello
            answer = desk.answer(json.loads(line))
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


class _Desk:
    """One question in, one answer out."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._engines: dict[int, Any] = {}

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        op, number = question["op"], question.get("engine", 0)
        if op == "hello":
            library = self._library
            return {
                "name": library.name,
                "version": library.version,
                "capabilities": list(library.capabilities),
                "notes": list(library.notes),
            }
        if op == "build":
            return self._build(number, question)
        if op == "close":
            engine = self._engines.pop(number, None)
            if engine is not None:
                engine.close()
            return {}
        return self._asked(self._engines[number], op, question)

    def _build(self, number: int, question: dict[str, Any]) -> dict[str, Any]:
        try:
            self._engines[number] = self._library.build(
                question["model"], question["dtype"], question["config"]
            )
        except Unsupported as why:
            return {"unsupported": str(why)}
        return {}

    def _asked(self, engine: Any, op: str, question: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = {}
        if op == "generate":
            answer["completions"] = engine.generate(question["requests"])
        elif op == "add":
            try:
                engine.add(question["request"])
            except Live:
                answer["live"] = True
        elif op == "step":
            answer["events"] = engine.step()
        elif op == "abort":
            engine.abort(question["request_id"])
        elif op == "has_unfinished":
            answer["has_unfinished"] = engine.has_unfinished()
        else:
            answer["error"] = f"unknown op {op!r}"
        return answer
