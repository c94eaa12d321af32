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
    ({"token_ids": [True]}, "completions[0].token_ids[0] is true, not a whole number"),
    ({"finish_reason": "aborted"}, "finish_reason is 'aborted', not one of stop, length, error"),
    ({"logprobs": [{"logprob": -1, "top": [[1.0, 2]]}]}, "logprobs[0].top[0][0] is 1.0, not a whole"),
]


@pytest.mark.parametrize(
    ("answer", "reported"),
    [
        ({"completions": {}}, "completions is an object, not a list"),
        ({"completions": [GOOD, {}]}, "completions[1] has no 'request_id'"),
        ({"tokens": []}, "it has the key 'tokens', but may have completions"),
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


def test_a_wrong_event_is_named(build: Build) -> None:
    events = [{"request_id": "a", "token_id": 7, "finish_reason": "done"}]
    engine = build(f"{STEPPING}\ndef step(question):\n    return {{'events': {events!r}}}")
    with pytest.raises(ProgramFailed, match=r"'step' with an object .*stop, length, aborted, error"):
        engine.step()


@pytest.mark.parametrize(
    ("change", "error", "reported"),
    [
        ("HELLO['capabilities'] = ['tracing']", UsageError, "declares the capability 'tracing', but"),
        ("HELLO['protocol'] = 2", ProgramFailed, "it has the key 'protocol', but may have"),
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
