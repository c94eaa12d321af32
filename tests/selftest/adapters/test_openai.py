"""An OpenAI-compatible server as an engine, over a real socket, with a server whose behaviour is
scripted."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.client import HTTPConnection
from types import SimpleNamespace
from typing import Any

import pytest

from batchproof.api import (
    CHOOSING,
    Capability,
    Completion,
    EngineConfig,
    FinishReason,
    Grammar,
    Request,
    SamplingParams,
    TokenLogprobs,
)
from batchproof.errors import EngineHang, UsageError
from batchproof.run.registry import resolve_engine
from batchproof.run.time_limit import time_limit
from batchproof_engines.adapters.openai import text_for
from batchproof_engines.adapters.openai.client import EngineFailed
from batchproof_engines.adapters.openai.saved_slots import RESTORED, SAVED
from batchproof_engines.adapters.openai.traffic import BESIDE, CACHED, CLOSED
from batchproof_engines.adapters.siblings import SEVERAL
from batchproof_lab.suite_run import run_suite
from tests.selftest.adapters.stand_in_server import MODEL, Handler, StandIn, answer, right_tokens

Build = Callable[..., Any]
Body = dict[str, Any]
REQUESTS = [Request("a", (1, 2, 3, 4, 5), 6), Request("b", (9,), 3), Request("c", (7, 7, 8), 5)]
WAYS = [
    "",
    "&stream=true",
    "&prompts=words&tokens=words",
    "&tokens=ids&stream=true",
    "&tokens=logprobs",
]
SIZES = SimpleNamespace(vocab_size=256, max_position_embeddings=256)
UNUSED_MODEL = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: SIZES))


@pytest.fixture
def build(server: StandIn) -> Iterator[Build]:
    """Returns a function that builds an engine with more options of `--engine`, closed at the end."""
    made = []

    def build(options: str = "", **config: Any) -> Any:
        spec = resolve_engine(f"openai?base_url={server.base_url}&model={MODEL}{options}")
        made.append(spec.factory(UNUSED_MODEL, EngineConfig(**config)))  # type: ignore[arg-type]
        return made[-1]

    yield build
    for engine in made:
        engine.close()


def right(requests: list[Request]) -> list[Completion]:
    answers = []
    for each in requests:
        tokens = right_tokens(each.prompt_token_ids, each.max_new_tokens, list(each.eos_token_ids))
        is_stopped = tokens[-1] in each.eos_token_ids
        reason = FinishReason.STOP if is_stopped else FinishReason.LENGTH
        answers.append(Completion(each.request_id, tuple(tokens), reason))
    return answers


def saying(*parts: object) -> Callable[[Handler, Body], None]:
    """Returns a behaviour that streams these events and then ends, or answers with the first one."""

    def behave(handler: Handler, body: Body) -> None:
        if not body.get("stream"):
            handler.say(200, parts[0])
            return
        handler.begin_stream()
        for part in parts:
            handler.event(part)

    return behave


def choice(text: str, **more: object) -> Body:
    return {"choices": [{"index": 0, "text": text, **more}]}


def test_the_suite_judges_a_good_server_clean(server: StandIn) -> None:
    engine = f"openai?base_url={server.base_url}&model={MODEL}&stream=true"
    which = "smoke or bad_request or cancelled or events_add_up"
    findings = run_suite(engine, ["--model=gpt2-hash", "-k", which, "--hypothesis-seed=0"])
    assert findings.exit_status == 0, findings.output
    assert server.most_running > 1


def test_a_request_begins_in_the_saved_state_nearest_to_its_prompt(
    build: Build, server: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, object]] = []

    def behave(handler: Handler, body: Body) -> None:
        if "/slots/" in handler.path:
            asked.append((handler.path, body["filename"]))
            handler.say(200, {})
        else:
            asked.append((handler.path, body["id_slot"]))
            answer(handler, body)

    server.behaviour = behave
    engine = build("&restored=true&concurrency=1")
    long = Request("long", (9, 9, 9, 8), 2)
    calls = [[Request("a", (1, 2, 3, 4), 2)], [long], [Request("b", (1, 2, 7), 2)]]
    assert [engine.generate(call) for call in calls] == [right(call) for call in calls]
    door, slots = "/v1/completions", "/slots/{}?action={}"
    assert asked == [
        (door, 0),
        (slots.format(0, "save"), "slot-0"),
        (slots.format(1, "restore"), "slot-0"),
        (door, 1),
        (slots.format(1, "save"), "slot-1"),
        (slots.format(0, "restore"), "slot-0"),
        (door, 0),
        (slots.format(0, "save"), "slot-2"),
    ]
    assert (engine.counters[SAVED], engine.counters[RESTORED]) == (3, 2)
    many = [Request(f"r{number}", (number, 5), 3) for number in range(12)]
    engine = build("&restored=true")
    monkeypatch.setattr(Handler, "timeout", 0.2)  # seconds for which a connection may be idle

    def behave_slowly(handler: Handler, body: Body) -> None:
        time.sleep(0.05)
        behave(handler, body)

    server.behaviour = behave_slowly
    assert engine.generate(many) == right(many), "more requests than slots"

    def forget(handler: Handler, body: Body) -> None:
        if "restore" in handler.path:
            handler.say(400, {"error": {"message": "Unable to restore slot"}})
        else:
            behave(handler, body)

    server.behaviour = forget
    with pytest.raises(EngineFailed, match=r"does not restore slot \d: Unable to restore slot"):
        engine.generate(many)


def test_an_eos_that_is_counted_but_left_out_is_put_back(build: Build, server: StandIn) -> None:
    usage = {"completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}}
    named = choice("t007", finish_reason="stop", stop_reason=9) | {"usage": usage}
    server.behaviour = saying(named)
    engine = build("&stream=true&eos=stop_token_ids")
    (completion,) = engine.generate([Request("a", (1,), 5, frozenset({9, 4}))])
    assert (completion.token_ids, completion.finish_reason) == ((7, 9), FinishReason.STOP)
    assert engine.counters[CACHED] == 1
    server.behaviour = saying(choice("t007", finish_reason="stop") | {"usage": usage})
    (completion,) = engine.generate([Request("a", (1,), 5, frozenset({4}))])
    assert completion.token_ids == (7, 4)
    (completion,) = engine.generate([Request("a", (1,), 5, frozenset({9, 4}))])
    assert completion.token_ids == (7,), "the server has not said which of the two it was"


@pytest.mark.parametrize(
    ("options", "reason"), [("", FinishReason.LENGTH), ("&eos_at_cap=length", FinishReason.STOP)]
)
def test_a_finish_reason_is_passed_on_except_where_a_server_calls_both_ends_length(
    build: Build, server: StandIn, options: str, reason: FinishReason
) -> None:
    """An EOS on the cap is STOP to the contract; what the server says is for the suite to judge."""
    server.behaviour = saying(choice("t007", finish_reason="length"))
    engine = build(f"&stream=true&eos=stop_token_ids{options}")
    requests = [Request("a", (1,), 1, frozenset({7})), Request("b", (1,), 1, frozenset({4}))]
    reasons = [completion.finish_reason for completion in engine.generate(requests)]
    assert reasons == [reason, FinishReason.LENGTH]
    assert any("finish reason is passed on" in note for note in engine.notes)


@pytest.mark.parametrize("way", WAYS)
def test_tokens_come_back_up_to_their_first_eos(build: Build, server: StandIn, way: str) -> None:
    assert build(way).generate(REQUESTS) == right(REQUESTS)
    tokens = right_tokens((1, 2, 3, 4, 5), 6)
    for place, eos in ((0, "client"), (2, "stop_token_ids"), (5, "client")):
        requests = [Request("a", (1, 2, 3, 4, 5), 6, frozenset({tokens[place]})), *REQUESTS[1:]]
        assert build(f"{way}&eos={eos}").generate(requests) == right(requests)
    server.bodies.clear()
    build(f"{way}&eos=generation_config").generate([Request("a", (1, 2), 2, frozenset({9, 4}))])
    assert server.bodies[0]["generation_config"] == '{"eos_token_id": [4, 9]}'


@pytest.mark.parametrize("way", ["", "&stream=true"])
def test_one_refused_request_leaves_the_others_alone(build: Build, way: str) -> None:
    bad = [
        Request("empty", (), 3),
        Request("unknown", (1, 256), 3),
        Request("nothing", (1,), 0),
        Request("long", (1,) * 255, 2),
        Request("warm", (1,), 2, sampling=SamplingParams(temperature=0.5)),
    ]
    twin = Request("a", (3,), 2)
    *refused, a, b, c, second = build(way).generate([*bad, *REQUESTS, twin])
    assert [a, b, c] == right(REQUESTS)
    assert [each.finish_reason for each in [*refused, second]] == [FinishReason.ERROR] * 6
    words = ["the prompt is empty", "token 256 is unknown", "max_new_tokens is 0", "context holds 256"]
    words.append("temperature is 0.5, but of sampling this engine takes nothing")
    for completion, word in zip(refused, words, strict=True):
        assert word in (completion.error or "")
    assert "request_id 'a' is live already" in second.error
    long, *fitting = build(way, max_model_len=8).generate(REQUESTS)
    assert long.error == "5 prompt tokens + max_new_tokens 6 = 11, but the context holds 8"
    assert fitting == right(REQUESTS[1:])


def error_of(code: int) -> Body:
    return {"error": {"message": "no such token", "code": code}}


ONE = REQUESTS[:1]
NO_WORD = "is not the word of a token: words are t000 to t255"
NONSENSE: dict[str, tuple[str, Callable[[Handler, Body], None], str]] = {
    "no JSON": ("", saying(b"<html>busy</html>"), "answered HTTP 200 with invalid JSON: '<html>"),
    "no choices": ("", saying({"object": "x"}), "without exactly one choice: \"{'object'"),
    "a strange word": ("", saying(choice("t001 hello", finish_reason="stop")), f"'hello' {NO_WORD}"),
    "no reason": ("&stream=true", saying(choice("t001 t002")), "after 2 of 6 tokens without a finish"),
    "no ids": (
        "&tokens=ids",
        saying(choice("t001", finish_reason="stop")),
        "answered without token_ids, which tokens=ids reads",
    ),
    "a 500": ("", lambda h, _: h.say(500, b"Traceback: boom"), "HTTP 500 Internal Server Error: 'T"),
    "a failure in a stream": ("&stream=true", saying(error_of(500), "[DONE]"), "no such token"),
    "a refusal behind a token": (
        "&stream=true",
        saying(choice("t001"), error_of(400)),
        "no such token",
    ),
    "words merged across events": (
        "&stream=true",
        saying(choice("t001"), choice("t002")),
        f"'t001t002' {NO_WORD}",
    ),
}


def test_an_error_in_a_stream_refuses_if_it_says_so_before_a_token(
    build: Build, server: StandIn
) -> None:
    server.behaviour = saying(error_of(400), "[DONE]")
    assert build("&stream=true").generate(ONE) == [Completion.refused("a", "no such token")]


@pytest.mark.parametrize("kind", NONSENSE)
def test_nonsense_is_named(build: Build, server: StandIn, kind: str) -> None:
    options, server.behaviour, words = NONSENSE[kind]
    with pytest.raises(EngineFailed) as caught:
        build(options).generate(ONE)
    message = str(caught.value)
    assert message.startswith(f"POST {server.base_url}/completions: the server ")
    assert words in message
    assert "(request 'a')" in message


def test_a_connection_that_was_closed_before_its_request_is_opened_again(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, request = build(""), HTTPConnection.request
    expected = engine.generate(ONE)
    closed = [BrokenPipeError()]

    def send(connection: HTTPConnection, *given: Any) -> None:
        if closed:
            raise closed.pop()
        request(connection, *given)

    monkeypatch.setattr(HTTPConnection, "request", send)
    assert engine.generate(ONE) == expected
    closed += [BrokenPipeError(), BrokenPipeError()]
    with pytest.raises(EngineFailed, match="broke the connection"):
        engine.generate(ONE)


@pytest.mark.parametrize("way", ["", "&stream=true"])
def test_a_server_that_dies_in_mid_run_is_one_error_that_names_a_request(
    build: Build, server: StandIn, way: str
) -> None:
    def die(handler: Handler, body: Body) -> None:
        if len(server.bodies) <= 5:
            answer(handler, body)
        elif body.get("stream"):
            handler.begin_stream()
            handler.event(choice("t001"))
        # Nothing more: the connection ends.

    server.behaviour = die
    requests = [Request(f"r{i}", (i, i + 1), 3) for i in range(40)]
    with pytest.raises(EngineFailed, match=r"\(request 'r\d+'\)$"):
        build(f"{way}&concurrency=4").generate(requests)
    assert server.most_running <= 4
    assert len(server.bodies) < 40, "the others are never sent"


@pytest.mark.parametrize("way", ["", "&stream=true"])
def test_a_server_that_says_nothing_runs_into_a_limit(build: Build, server: StandIn, way: str) -> None:
    released = threading.Event()
    server.behaviour = lambda _handler, _body: released.wait(10) and None
    before = threading.active_count()
    began = time.monotonic()
    engine = build(f"{way}&timeout_s=30")
    with pytest.raises(EngineHang, match="did not return within"), time_limit(0.3, "generate"):
        engine.generate(REQUESTS)
    with pytest.raises(RuntimeError, match=r"sent nothing for 0.2 s \(timeout_s\)"):
        build(f"{way}&timeout_s=0.2").generate(REQUESTS)
    assert time.monotonic() - began < 5
    released.set()
    wait_until(lambda: threading.active_count() <= before, "no thread is left behind")


def test_a_request_that_is_cancelled_or_closed_is_a_closed_connection(
    build: Build, server: StandIn
) -> None:
    server.token_s = 0.02
    engine = build("&stream=true")
    engine.add(Request("long", (1, 2, 3), 200))
    engine.add(Request("short", (4,), 6))
    with pytest.raises(ValueError, match="request_id 'short' is live already"):
        engine.add(Request("short", (1,), 1))
    first = engine.step()
    assert first
    engine.abort("long")
    engine.add(Request("long", (5,), 2))  # the id is free again
    events = []
    while engine.has_unfinished:
        events += engine.step()
    assert engine.step() == []
    seen = [event for event in events if event.request_id == "long"]
    assert seen[0].finish_reason is FinishReason.ABORTED
    assert tuple(event.token_id for event in seen[1:]) == right([Request("long", (5,), 2)])[0].token_ids
    wait_until(lambda: server.num_running == 0, "the server is done with all")
    assert server.num_hung_up == 1
    for number in range(3):
        engine.add(Request(f"r{number}", (number,), 200))
    engine.step()
    wait_until(lambda: server.num_running == 3, "the server works on all")
    engine.close()
    wait_until(lambda: server.num_running == 0, "closing hangs up on all")
    assert server.num_hung_up == 4
    assert engine.counters[CLOSED] == 4
    assert engine.counters[BESIDE] >= 5, "all but the second of that id"
    assert engine.counters[CACHED] == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("&prompts=texts", "prompts is \"texts\": input should be 'ids' or 'words'"),
        ("&n=2&tokens=verbose", "n is 2, which needs stream=true"),
        ("&stop_texts=true", "stop_texts is true, which needs EOS ids that the server applies"),
        ("&concurrency=0", "concurrency is 0, but must be at least 1"),
        ("&extra=[1]", "extra is .*, but must be a JSON object"),
        (
            "&api_key_env=NO_SUCH_KEY",
            "api_key_env is 'NO_SUCH_KEY', but must be an environment variable",
        ),
        ("&sampling=top_p,heat", "sampling 'heat' is unknown; choose one of temperature"),
        ("&seeded=true", "seeded is true, which needs sampling with a seed"),
        ("?model=x", "openai needs to know its server"),
    ],
)
def test_wrong_options_are_refused_in_one_sentence(server: StandIn, options: str, words: str) -> None:
    url = "" if options.startswith("?") else f"?base_url={server.base_url}&model={MODEL}"
    with pytest.raises(UsageError, match=words):
        resolve_engine(f"openai{url}{options}").factory(UNUSED_MODEL, EngineConfig())  # type: ignore[arg-type]


def test_a_server_without_the_model_or_that_is_gone_is_reported(build: Build, server: StandIn) -> None:
    server.listed = ["tiny", "small"]
    with pytest.raises(UsageError, match="lists no model 'gpt2-hash': there is tiny, small; listed="):
        build()
    server.listed = []
    with pytest.raises(UsageError, match="/models lists no model; name it: 'openai"):
        text_for(server.base_url)
    engine = build("&stream=true&listed=false")
    server.shutdown()
    server.socket.close()
    with pytest.raises(RuntimeError, match="the server is not there: connection refused"):
        engine.generate(REQUESTS)
    engine.add(REQUESTS[0])
    with pytest.raises(RuntimeError, match="connection refused"):
        engine.step()
    assert not engine.has_unfinished
    for options in ("", "&listed=false"):
        with pytest.raises(UsageError, match=r"no such engine there: GET .*/models: the server is not"):
            build(options)


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 5
    while not is_so():
        assert time.monotonic() < end, f"not within 5 s: {what}"
        time.sleep(0.01)


def test_parameters_and_extras_go_by_the_names_of_the_interface(
    build: Build, server: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "secret")
    extra = '&extra={"ignore_eos":true}&api_key_env=MY_KEY'
    engine = build(f"&sampling=vllm&seeded=true&logprobs=true{extra}")
    assert engine.capabilities == CHOOSING - {Capability.PROMPT_LOGPROBS} | {Capability.CLOSING}
    assert "min_tokens" not in engine.sampling_fields, "the server knows no EOS ids"
    server_stops = build("&sampling=vllm&eos=stop_token_ids")
    assert "stop_token_sequences" not in server_stops.sampling_fields
    asked = SamplingParams(
        temperature=0.5,
        top_k=3,
        seed=7,
        logit_bias=((4, -2.5), (1, 3.0)),
        allowed_token_ids=frozenset({9, 4}),
        logprobs=0,
    )
    engine.generate([replace(REQUESTS[0], sampling=asked)])
    sent = {"temperature": 0.5, "top_k": 3, "seed": 7, "logit_bias": {"4": -2.5, "1": 3.0}}
    sent |= {"allowed_token_ids": [4, 9], "logprobs": 1, "return_tokens_as_token_ids": True}
    plain = {"model": MODEL, "prompt": [1, 2, 3, 4, 5], "max_tokens": 6, "ignore_eos": True}
    assert server.bodies == [plain | sent]
    assert server.keys == ["Bearer secret"]


@pytest.mark.parametrize("way", ["", "&stream=true"])
def test_siblings_are_one_request_whose_choices_are_told_apart(
    build: Build, server: StandIn, way: str
) -> None:
    """Those that draw and have the same prompt and parameters, with seeds that follow each other."""

    def behave(handler: Handler, body: Body) -> None:
        tokens = [[body.get("seed", 0) + index] * 3 for index in range(body.get("n", 1))]
        choices = [{"index": i, "token_ids": each} for i, each in enumerate(tokens)]
        ends = [{**each, "token_ids": [], "finish_reason": "length"} for each in choices]
        if not body.get("stream"):
            whole = [{**each, "finish_reason": "length"} for each in reversed(choices)]
            handler.say(200, {"choices": whole, "usage": {"completion_tokens": 3 * len(whole)}})
            return
        handler.begin_stream()
        for each in (*choices, *ends):
            handler.event({"choices": [each]})
        handler.event({"choices": [], "usage": {"completion_tokens": 3 * len(choices)}})

    def drawn(name: str, seed: int, **more: Any) -> Request:
        return Request(name, (1, 2), 3, sampling=SamplingParams(1.0, seed=seed, **more))

    server.behaviour = behave
    wanted = [drawn("a", 4), drawn("other", 5, top_k=2), drawn("b", 5), drawn("c", 6), drawn("d", 7)]
    wanted += [Request("greedy", (1, 2), 3), Request("too", (1, 2), 3)]
    engine = build(f"&n=3&tokens=ids&sampling=vllm{way}")
    answers = {each.request_id: each.token_ids[0] for each in engine.generate(wanted)}
    assert answers == {"a": 4, "other": 5, "b": 5, "c": 6, "d": 7, "greedy": 0, "too": 0}
    assert sorted(each.get("n", 1) for each in server.bodies) == [1, 1, 1, 1, 3]
    assert engine.counters[SEVERAL] == 3
    server.behaviour = saying({"choices": [{"index": 0, "token_ids": [4], "finish_reason": "stop"}]})
    with pytest.raises(EngineFailed, match=r"request '[abc]'"):
        engine.generate(wanted[:4])


def test_stop_sequences_are_applied_where_eos_ids_are(build: Build, server: StandIn) -> None:
    tokens = right_tokens((1, 2, 3, 4, 5), 6)
    stopping = SamplingParams(stop_token_sequences=(tuple(tokens[1:3]), (tokens[4],)))
    (completion,) = build("&sampling=openai").generate([replace(REQUESTS[0], sampling=stopping)])
    assert (completion.token_ids, completion.finish_reason) == (tuple(tokens[:3]), FinishReason.STOP)
    assert server.bodies[0].keys() == {"model", "prompt", "max_tokens", "temperature"}


@pytest.mark.parametrize("way", ["&tokens=ids", "&tokens=logprobs&stream=true"])
@pytest.mark.parametrize("num", [0, 2])
def test_logprobs_are_read_with_their_token(build: Build, way: str, num: int) -> None:
    asked = replace(REQUESTS[1], sampling=SamplingParams(logprobs=num))
    plain, completion = build(f"{way}&logprobs=true").generate([REQUESTS[0], asked])
    assert plain.logprobs is None
    assert completion == right([asked])[0]
    likeliest = [((token, -0.5), (9, -1.5)) for token in completion.token_ids]
    assert completion.logprobs == tuple(TokenLogprobs(-0.5, 1, top[:num]) for top in likeliest)


def test_logprobs_of_another_length_are_named(build: Build, server: StandIn) -> None:
    """A token behind the likeliest has no rank."""
    given = {
        "tokens": ["token_id:3"],
        "token_logprobs": [-9],
        "top_logprobs": [{"t001": -1, "t003": -9}],
    }
    server.behaviour = saying(choice("t003", finish_reason="length", logprobs=given))
    asked = [Request("a", (1,), 1, sampling=SamplingParams(logprobs=1))]
    (completion,) = build("&logprobs=true").generate(asked)
    assert completion.logprobs == (TokenLogprobs(-9.0, None, ((1, -1.0),)),)
    given["token_logprobs"] = [-9, -9]
    with pytest.raises(RuntimeError, match="with 1 tokens, 2 token_logprobs and 1 top_logprobs"):
        build("&logprobs=true").generate(asked)


@pytest.mark.parametrize("way", ["", "&stream=true", "&tokens=logprobs"])
def test_logprobs_of_each_token_by_its_id_or_name(build: Build, server: StandIn, way: str) -> None:
    """llama.cpp's completions have them as chat completions do, with ids; it pads words with blanks."""

    def likely(token: int, logprob: float, **more: object) -> Body:
        return {"id": token, "token": f" t{token:03}", "bytes": [1], "logprob": logprob, **more}

    first = likely(3, -0.5, top_logprobs=[likely(9, -1), likely(3, -0.5)])
    second = {"token": "t001", "logprob": -4, "top_logprobs": [{"token": "t002", "logprob": -0.25}]}
    if "stream" in way:
        parts = [
            choice(" t003", logprobs={"content": [first]}),
            choice(" t001", logprobs={"content": [second]}),
        ]
        server.behaviour = saying(*parts, choice("", finish_reason="length", logprobs=None))
    else:
        given = {"content": [first, second]}
        server.behaviour = saying(choice(" t003 t001", finish_reason="length", logprobs=given))
    asked = [Request("a", (1,), 2, sampling=SamplingParams(logprobs=2))]
    (completion,) = build(f"{way}&sampling=llama.cpp&logprobs=true").generate(asked)
    assert completion.token_ids == (3, 1)
    assert completion.logprobs == (
        TokenLogprobs(-0.5, 1, ((3, -0.5), (9, -1.0))),
        TokenLogprobs(-4.0, None, ((2, -0.25),)),
    )


def test_a_dialect_has_names_and_defaults_of_its_own(build: Build, server: StandIn) -> None:
    engine = build("&sampling=llama.cpp&seeded=true")
    assert "repetition_penalty" in engine.sampling_fields
    assert not {"presence_penalty", "frequency_penalty", "min_tokens"} & engine.sampling_fields
    asked = SamplingParams(temperature=0.5, top_k=3, repetition_penalty=1.5, seed=7)
    engine.generate([REQUESTS[1], replace(REQUESTS[0], sampling=asked)])
    plain, sent = sorted(server.bodies, key=len)
    assert plain.keys() == {"model", "prompt", "max_tokens", "temperature"}, "its defaults are judged"
    order = ["penalties", "temperature", "min_p", "top_k", "top_p"]
    wanted = {"temperature": 0.5, "top_k": 3, "top_p": 1.0, "min_p": 0.0, "seed": 7, "samplers": order}
    assert wanted.items() <= sent.items()
    assert sent["repeat_penalty"] == 1.5
    assert sent["repeat_last_n"] > 4096
    assert "repetition_penalty" not in sent


@pytest.mark.parametrize(
    ("kind", "text", "right"),
    [
        ("regex", r"(a|\.b)?[x-y]{2}", '((" t097")|(" t046")(" t098"))?(" t120" | " t121"){2}'),
        ("ebnf", 'root ::= "a\\"" x+', ' (" t097" " t034") text-x+'),
        ("regex", r"\d", None),
        ("regex", "[^a]", None),
        ("ebnf", 'root ::= "a', None),
        ("json_schema", "{}", None),
    ],
)
def test_a_grammar_goes_in_words(
    build: Build, server: StandIn, kind: str, text: str, right: str | None
) -> None:
    asked = replace(REQUESTS[0], eos_token_ids=frozenset({2, 256}), grammar=Grammar(kind, text))
    endless = replace(asked, request_id="endless", eos_token_ids=frozenset({256}))
    completion, refused = build("&grammars=llama.cpp").generate([asked, endless])
    assert (completion.error is None) == (right is not None)
    assert refused.error
    for body in server.bodies:
        assert body["grammar"] == f'root ::= text-root (" t002") .*\ntext-root ::= {right}'
