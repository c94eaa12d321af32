"""An engine behind a pipe: each way its program can fail is reported as what it is, and the next one
works."""

import gc
import json
import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from batchproof.api import (
    Capability,
    Completion,
    EngineConfig,
    FinishReason,
    Request,
    RowRecord,
    SamplingParams,
    StepRecord,
    TokenEvent,
    TokenLogprobs,
)
from batchproof.checks.environment import require_same, world_of
from batchproof.errors import EngineHang, UnsupportedModelError, UsageError
from batchproof.models.catalogue import load_model
from batchproof.places import ROOT
from batchproof.run.capabilities import Offer, offer_of
from batchproof.run.registry import resolve_engine
from batchproof.run.time_limit import time_limit
from batchproof_engines.adapters.checkpoint import saved
from batchproof_engines.adapters.child import kill_all
from batchproof_engines.adapters.piped.process import ProgramFailed
from tests.selftest.adapters.conftest import (
    ANSWERS,
    PLAIN,
    REQUESTS,
    STEPPING,
    Build,
    Command,
    generating,
)

NO_OBJECT = "answered 'generate' with a line that is not a JSON object"
# What `generate` does instead of answering -> the message about it.
FAILURES = {
    "os.kill(os.getpid(), signal.SIGSEGV)": "was killed by SIGSEGV before it answered 'generate'",
    "os.close(1); time.sleep(60)": "closed its stdout before it answered 'generate'",
    "say('{\"compl'); os._exit(0)": "exited with status 0 in the middle of its answer to 'generate': "
    "'{\"compl'",
    "OUT.buffer.write(b'\\xff\\xfe\\n')": NO_OBJECT,
    "say('{}\\n{}\\n')": "answered 'generate' with more than one line; then came '{}",
    "[say('0' * 10**6) for _ in range(99)]": "answered 'generate' with a line of more than 64 MB: '000",
    "raise SystemExit(os.system('sleep 60 &'))": "exited with status 0 before it answered 'generate'",
}


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_requests_go_out_with_all_they_need_and_completions_come_back(
    build: Build, model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where question and output are more than a pipe holds, or the log may."""
    monkeypatch.setattr("batchproof_engines.adapters.piped.process.MAX_LOG_BYTES", 10_000)
    shown = "return {'error': json.dumps([question, engines[question['engine']]], sort_keys=True)}"
    talk = "print(question, question, file=sys.stderr); return plain(question)"
    body = f"if question['requests'][0]['request_id'] == 'b': {shown}\n    {talk}"
    engine = build(f"{PLAIN}\n{generating(body)}", max_num_seqs=3)
    assert engine.generate(REQUESTS) == ANSWERS
    (answer,) = engine.generate([Request("a", tuple(range(250)) * 1000, 100_000)])
    assert answer.token_ids == (7,) * 100_000
    assert engine.capabilities == {Capability.CLOSING}
    assert engine.release == "stand-in 0.1"
    with pytest.raises(RuntimeError) as caught:
        engine.generate(REQUESTS[1:])
    for words in (
        '"requests": [{"eos_token_ids": [4, 5], "max_new_tokens": 1, "prompt_token_ids": [9]',
        '"max_num_seqs": 3, "num_blocks": null',
        f'"dtype": "float32", "engine": 1, "model": "{saved(model)}"',
    ):
        assert words in str(caught.value)
    assert engine.generate(REQUESTS) == ANSWERS
    assert 0 < engine._process._child.num_logged < 10_000
    engine.close()
    engine.close()


CHOOSING_PROGRAM = """
HELLO["capabilities"] = ["sampling", "logprobs"]
HELLO["sampling_fields"] = ["temperature", "top_k", "logprobs"]
def completion(request):
    found = {"logprob": -0.5, "rank": None, "top": [[3, -0.25], [7, -1]]}
    told = json.dumps(request.get("sampling"))
    return {"request_id": told, "token_ids": [7], "finish_reason": "length", "logprobs": [found],
            "prompt_logprobs": [None, found]}
"""
WARM = replace(REQUESTS[0], sampling=SamplingParams(temperature=0.5, logprobs=2))
SHARP = replace(REQUESTS[0], sampling=SamplingParams(temperature=0.5, min_p=0.1))


def test_a_program_gets_the_parameters_that_it_declares_and_no_others(build: Build) -> None:
    engine = build(CHOOSING_PROGRAM)
    declared = {Capability.CLOSING, Capability.SAMPLING, Capability.LOGPROBS}
    fields = {"temperature", "top_k", "logprobs"}
    assert offer_of("piped", lambda _: engine) == Offer(declared, fields)
    plain, refused, warm = engine.generate([REQUESTS[0], SHARP, WARM])
    assert plain.request_id == "null"
    assert json.loads(warm.request_id) == {"temperature": 0.5, "logprobs": 2}
    found = TokenLogprobs(-0.5, None, ((3, -0.25), (7, -1.0)))
    assert (warm.logprobs, warm.prompt_logprobs) == ((found,), (None, found))
    words = "min_p is 0.1, but of sampling this engine takes temperature, top_k, logprobs"
    assert refused == Completion.refused("a", words)


TRACED = f"""{STEPPING}
HELLO["capabilities"].append("tracing")
told = step
def step(question):
    row = {{"request_id": "a", "context_len": 0, "query_len": 2, "is_sampled": True}}
    return told(question) | {{"trace": [{{"rows": [row], "finished": ["a"]}}]}}
"""


def test_an_engine_that_steps_or_has_a_trace_is_one_that_says_so(build: Build) -> None:
    engine = build(TRACED)
    declared = {Capability.CLOSING, Capability.STEPPING, Capability.TRACING}
    assert offer_of("piped", lambda _: engine)[0] == declared
    engine.add(REQUESTS[0])
    with pytest.raises(ValueError, match="request_id 'a' is live already"):
        engine.add(REQUESTS[0])
    engine.add(REQUESTS[1])
    assert engine.has_unfinished
    assert engine.step() == [TokenEvent("a", 7, FinishReason.LENGTH)]
    assert engine.trace == [StepRecord((RowRecord("a", 0, 2, True),), (), (), ("a",), ())]
    engine.abort("b")
    assert not engine.has_unfinished
    words = "temperature is 0.5, but of sampling this engine takes nothing"
    assert engine.generate([WARM, REQUESTS[1]]) == [Completion.refused("a", words), ANSWERS[1]]
    engine.add(WARM)
    assert engine.step() == [TokenEvent.refused("a", words)]


def test_one_process_serves_many_engines_and_outlives_them(build: Build) -> None:
    first = build(generating("return {'error': str(sorted(engines))}"))
    second = build(None)
    with pytest.raises(RuntimeError, match=r"^\[1, 2\]$"):
        second.generate(REQUESTS)
    first.close()
    del second  # without closing it
    third = build(None)
    assert third._process is first._process
    with pytest.raises(RuntimeError, match=r"^\[3\]$"):
        third.generate(REQUESTS)


@pytest.mark.parametrize("body", FAILURES)
def test_a_failure_is_reported_and_the_next_engine_has_a_new_process(body: str, build: Build) -> None:
    once = "not os.path.exists(__file__ + '.once') and open(__file__ + '.once', 'w').close() is None"
    failing = build(f"{PLAIN}\n{generating(f'if {once}:')}\n        {body}\n    return plain(question)")
    bystander = build(None)
    reported = []
    for engine in (failing, bystander, failing):
        with pytest.raises(ProgramFailed) as caught:
            engine.generate(REQUESTS)
        reported.append(str(caught.value))
    assert reported == reported[:1] * 3, "all engines of the process raise the same message"
    assert reported[0].startswith(f"the program 'cmd:{sys.executable} -S -E ")
    assert FAILURES[body] in reported[0]
    assert len(reported[0]) < 2000
    assert not is_there(failing._process._child.popen.pid)
    failing.close()  # there is nothing to give back
    assert build(None).generate(REQUESTS) == ANSWERS


@pytest.mark.parametrize(
    ("change", "op"),
    [
        ("def hello(question):\n    while True: pass", "hello"),
        ("def build(question):\n    return {} if question['engine'] == 1 else time.sleep(60)", "build"),
        (generating("time.sleep(60)"), "generate"),
    ],
)
def test_a_hang_ends_with_the_time_limit_and_its_process(
    change: str, op: str, build: Build, command: Command, model: PreTrainedModel
) -> None:
    factory = resolve_engine(f"cmd:{command(change)}").factory
    engine = None if op == "hello" else factory(model, EngineConfig())
    began = time.monotonic()
    with pytest.raises(EngineHang) as caught, time_limit(0.3, "it"):
        (engine if engine and op == "generate" else factory(model, EngineConfig())).generate(REQUESTS)
    assert time.monotonic() - began < 5
    first, second = str(caught.value).splitlines()[:2]
    assert first == "it did not return within 0.3 s"
    assert f"did not answer '{op}' within the time limit and was killed; " in second
    assert build("").generate(REQUESTS) == ANSWERS


def test_an_interrupt_ends_the_process_and_closing_has_a_limit(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchproof_engines.adapters.piped.engine.CLOSE_LIMIT_S", 0.2)
    with pytest.raises(ProgramFailed, match=r"did not answer 'close' within 0\.2 s and was killed"):
        build("def close(question):\n    time.sleep(60)").close()
    engine = build(generating("time.sleep(60)"))

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    outer = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(KeyboardInterrupt):
            engine.generate(REQUESTS)
    finally:
        signal.signal(signal.SIGALRM, outer)
    assert not is_there(engine._process._child.popen.pid)
    with pytest.raises(ProgramFailed, match="killed by KeyboardInterrupt while answering 'gener"):
        engine.generate(REQUESTS)


def test_a_line_that_comes_late_is_not_taken_for_an_answer(build: Build) -> None:
    engine = build("def build(question):\n    say('{}\\n')\n    time.sleep(0.1)\n    return {}")
    assert select.select([engine._process._stdout], [], [], 60)[0], "the second line never came"
    with pytest.raises(ProgramFailed, match="wrote an unsolicited line before 'generate'"):
        engine.generate(REQUESTS)


def test_what_the_program_has_started_ends_with_it(
    build: Build, command: Command, model: PreTrainedModel, tmp_path: Path
) -> None:
    beats = tmp_path / "beats"
    starts = f"os.system('while :; do echo >> {beats}; sleep 0.02; done &')"
    waits = f"while not os.path.exists({str(beats)!r}): time.sleep(0.01)"
    engine = build(f"def generate(question):\n    {starts}\n    {waits}\n    os._exit(3)")
    with pytest.raises(ProgramFailed, match=r"status 3 before .*; it wrote nothing to its stderr"):
        engine.generate(REQUESTS)
    size = beats.stat().st_size
    time.sleep(0.3)
    assert beats.stat().st_size == size
    factory = resolve_engine(f"cmd:{command('')}").factory
    ended = factory(model, EngineConfig())._process
    kill_all()
    assert ended._child.popen.poll() is not None
    assert factory(model, EngineConfig())._process is not ended, "it starts anew"


def test_nothing_is_left_when_the_suite_ends_and_no_torch_is_loaded(command: Command) -> None:
    code = f"""
        import sys
        from batchproof.run.registry import resolve_engine
        from batchproof_engines.adapters.piped.process import Program
        command = {command(generating("pass"))!r}
        resolve_engine("cmd:" + command)
        process = Program(command, command.split(), ".").process()
        print(process._child.popen.pid, "torch" in sys.modules)
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    pid, has_torch = run.stdout.split()
    assert (is_there(int(pid)), has_torch) == (False, "False")


def test_saving_a_model_leaves_the_world_as_it_was(capfd: pytest.CaptureFixture[str]) -> None:
    model = load_model("llama-random", torch.device("cpu"), torch.float32).model
    before = world_of(model)
    folder = saved(model)
    require_same(before, world_of(model), "by saving it")
    assert (folder / "config.json").exists()
    assert saved(model) == folder
    assert capfd.readouterr() == ("", "")
    del model
    gc.collect()
    assert not folder.exists()


def test_the_example_answers_as_the_reference_does(model: PreTrainedModel) -> None:
    command = f"cmd:{sys.executable} {ROOT}/docs/examples/piped_engine.py"
    example, reference = (
        resolve_engine(each).factory(model, EngineConfig()) for each in (command, "reference")
    )
    assert example.generate(REQUESTS) == reference.generate(REQUESTS)
    example._process.kill("was ended by the test")


# What a program answers instead of what it was asked, and how the answer is quoted.
GOOD = {"request_id": "a", "token_ids": [7], "finish_reason": "length"}
TOP = {"logprob": -1, "top": [[1.0, 2]]}


@pytest.mark.parametrize(
    ("answer", "reported"),
    [
        ({"completions": {}}, "completions is {}: input should be a valid array"),
        ({"completions": [GOOD, {}]}, "completions[1].request_id: field required"),
        ({"completions": [GOOD | {"token_ids": [True]}]}, "token_ids[0] is true: input should be"),
        ({"completions": [GOOD | {"logprobs": [TOP]}]}, "logprobs[0].top[0][0] is 1.0: input"),
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
    ("change", "error", "reported"),
    [
        ("HELLO['capabilities'] = ['masking']", UsageError, "declares the capability 'masking', but"),
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
        ({"unsupported": "no RoPE"}, UnsupportedModelError, "^engine 'stand-in' cannot serve GPT2LM"),
        ({"error": "no room"}, RuntimeError, "^no room$"),
    ],
)
def test_a_model_that_is_refused_leaves_the_process_for_the_next(
    answer: dict[str, str], error: type[Exception], reported: str, build: Build
) -> None:
    first = build(f"def build(question): return {answer} if question['engine'] == 2 else {{}}")
    with pytest.raises(error, match=reported):
        build(None)
    assert build(None)._process is first._process
