"""An engine behind a pipe that answers something else than was asked: the answer is quoted exactly."""

from __future__ import annotations

from typing import Any

import pytest

from batchproof.errors import UnsupportedModelError, UsageError
from batchproof_engines.adapters.piped.process import ProgramFailed
from tests.selftest.adapters.conftest import Build
from tests.selftest.adapters.stand_in_program import ANSWERS, PLAIN, REQUESTS, STEPPING, process_of

GOOD = {"request_id": "a", "token_ids": [7], "finish_reason": "length"}
# What a completion has besides or instead, and what is said of it.
CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"token_ids": [1.0]}, "token_ids hold 1.0, but should be integers"),
    ({"finish_reason": "eos"}, "finish_reason is 'eos', but should be one"),
    ({"request_id": 1}, "completion 0 whose request_id is 1, but should be"),
    ({"text": "x"}, "completion 0 that has the field 'text', but may have"),
    ({"error": 1}, "completion 0 whose error is 1, but should be a string"),
    (
        {"logprobs": [{"rank": 1, "top": []}]},
        "completion 0 with logprobs of which one is None, but should be a number",
    ),
    (
        {"logprobs": [{"logprob": -1, "top": [[1.0, 2]]}]},
        "logprobs whose top holds [1.0, 2], but should hold [token id, logprob]",
    ),
]


@pytest.mark.parametrize(
    ("answer", "reported"),
    [
        ({}, "an answer that lacks the field 'completions'"),
        ({"completions": {}}, "an answer whose completions is {}, but should be a list"),
        ({"completions": [GOOD, {}]}, "completion 1 that lacks the field 'token_ids'"),
        ({"tokens": []}, "an answer that has the field 'tokens', but may have completions"),
        *(({"completions": [GOOD | change]}, reported) for change, reported in CHANGES),
    ],
)
def test_a_wrong_answer_is_named_and_the_process_goes_on(
    answer: dict[str, Any], reported: str, build: Build
) -> None:
    engine = build(
        f"{PLAIN}\ndef generate(q):\n    return {answer!r} if len(q['requests']) == 1 else plain(q)"
    )
    with pytest.raises(ProgramFailed, match="answered 'generate' with") as caught:
        engine.generate(REQUESTS[:1])
    assert reported in str(caught.value)
    assert engine.generate(REQUESTS) == ANSWERS


@pytest.mark.parametrize(
    ("event", "reported"),
    [
        ({"request_id": "a"}, "event 0, which has no token_id; give null where there is no token"),
        ({"request_id": "a", "token_id": "7"}, "token_id is '7', but should be an integer"),
        ({"request_id": "a", "token_id": 7, "finish_reason": "done"}, "stop, length, aborted, error"),
    ],
)
def test_a_wrong_event_is_named(event: dict[str, Any], reported: str, build: Build) -> None:
    engine = build(f"{STEPPING}\ndef step(question):\n    return {{'events': [{event!r}]}}")
    with pytest.raises(ProgramFailed, match="answered 'step' with event 0") as caught:
        engine.step()
    assert reported in str(caught.value)


@pytest.mark.parametrize(
    ("change", "error", "reported"),
    [
        ("HELLO['capabilities'] = ['tracing']", UsageError, "declares the capability 'tracing', but"),
        ("HELLO['capabilities'] = 'stepping'", ProgramFailed, "capabilities 'stepping', but they sho"),
        ("del HELLO['version']", ProgramFailed, "answered 'hello' with a hello that lacks the field"),
        ("HELLO['protocol'] = 2", ProgramFailed, "a hello that has the field 'protocol', but may have"),
        ("def hello(question): return {'error': 'no GPU'}", RuntimeError, "^no GPU$"),
        ("1 / 0", ProgramFailed, "exited with status 1 before it answered 'hello'; the last lines of"),
    ],
)
def test_a_program_with_an_invalid_hello_is_started_anew(
    change: str, error: type[Exception], reported: str, build: Build
) -> None:
    with pytest.raises(error, match=reported):
        build(change)
    assert build("").generate(REQUESTS) == ANSWERS


@pytest.mark.parametrize(
    ("answer", "error", "reported"),
    [
        (
            {"unsupported": "no RoPE"},
            UnsupportedModelError,
            "^engine 'stand-in' cannot serve GPT2LM",
        ),
        ({"ok": 1}, ProgramFailed, "an answer that has the field 'ok', but may have unsupported"),
        ({"error": "no room"}, RuntimeError, "^no room$"),
    ],
)
def test_a_model_that_is_refused_leaves_the_process_for_the_next(
    answer: dict[str, str], error: type[Exception], reported: str, build: Build
) -> None:
    first = build(f"def build(question): return {answer} if question['engine'] == 2 else {{}}")
    with pytest.raises(error, match=reported):
        build(None)
    assert process_of(build(None)) is process_of(first)
