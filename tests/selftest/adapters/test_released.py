"""Released engines in environments of their own: how they are found, asked, and restarted."""

import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel

from batchproof.__main__ import main
from batchproof.api import Completion, EngineConfig, FinishReason, Request, TokenEvent
from batchproof.errors import EngineHang, UnsupportedModelError, UsageError
from batchproof.run.registry import resolve_engine
from batchproof.run.time_limit import time_limit
from batchproof_engines.adapters.openai.client import EngineFailed
from batchproof_engines.adapters.piped import protocol
from batchproof_engines.adapters.piped.engine import SteppingPipedEngine
from batchproof_engines.adapters.piped.process import Process, Program
from batchproof_engines.adapters.released import libraries, serving
from batchproof_engines.adapters.released.server import LocalServer

PROGRAMS = Path(libraries.__file__).parent

# A library whose engine answers with each token of the prompt plus one.
ADDING = """
    import sys
    sys.path.insert(0, {programs!r})
    from serving import Live, Unsupported, completed, refused, serve

    class Engine:
        def __init__(self):
            self.live = []
        def generate(self, requests):
            print("a library that prints")
            return [self.answer(each) for each in requests]
        def answer(self, request):
            if not request["prompt_token_ids"]:
                return refused(request, "empty")
            return completed(request, [t + 1 for t in request["prompt_token_ids"]])
        def add(self, request):
            if request["request_id"] in self.live:
                raise Live
            self.live.append(request["request_id"])
        def step(self):
            return [{{"request_id": self.live.pop(0), "token_id": 7, "finish_reason": "length"}}]
        def abort(self, request_id):
            self.live.remove(request_id)
        def has_unfinished(self):
            return bool(self.live)
        def close(self):
            print("closed", file=sys.stderr)

    class Library:
        name, version, capabilities = "adding", "1.0", ["stepping"]
        def __init__(self, by: int = 1):
            if by > 9:
                raise ValueError("by is above 9")
            self.notes = [f"adds {{by}}"]
        def build(self, folder, dtype, config, num_threads):
            if dtype != "float32":
                raise Unsupported("only float32")
            if config["max_num_seqs"] == 3:
                raise ValueError("three is too many")
            return Engine()

    serve(Library)
"""
# A server that reports ready, writes a line for each GET, and exits on the first POST.
FRAIL = """
    import sys
    from http.server import BaseHTTPRequestHandler, HTTPServer
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            print("a prompt came back", flush=True)
            self.send_response(200); self.send_header("Content-Length", "2"); self.end_headers()
            self.wfile.write(b"{}")
        def do_POST(self):
            sys.exit("broken")
        def log_message(self, *given): ...
    HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def test_what_pip_did_not_finish_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(libraries, "ENVIRONMENTS", tmp_path)
    made: list[list[str]] = []
    asked: list[str] = []

    def pip(command: list[str], **_more: object) -> None:
        made.append(command)
        asked.extend(Path(each).read_text() for each in command if each.endswith(".txt"))
        if len(made) == 1:
            raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(
        libraries.venv, "create", lambda folder, **_more: Path(folder).mkdir(exist_ok=True)
    )
    monkeypatch.setattr(libraries.subprocess, "run", pip)
    assert main(["install", "openvino"]) == 2
    assert "'openvino' could not be installed" in capsys.readouterr().err
    assert libraries.interpreter("openvino") is None
    assert main(["install", "openvino"]) == 0
    assert libraries.interpreter("openvino") == str(tmp_path / "openvino" / "bin" / "python")
    assert asked[0] == libraries.LIBRARIES["openvino"].requirements.read_text()
    num_made = len(made)
    assert main(["install", "openvino"]) == 0
    assert len(made) == num_made, "it is there already"
    assert main(["install", "openvino==2026.3.0.0"]) == 0
    other = str(tmp_path / "openvino-2026.3.0.0" / "bin" / "python")
    assert libraries.interpreter("openvino", "2026.3.0.0") == other
    assert "openvino-genai==2026.3.0.0\n" in asked[-1]
    built: list[tuple[str, int]] = []
    monkeypatch.setattr(
        libraries, "build", lambda wanted, _python: built.append((wanted.source, len(made)))
    )
    for each in ("llama-server", "llama-server==0.3.20"):
        assert main(["install", each]) == 0
    pinned, other = built
    assert other == ("llama_cpp_python==0.3.20", pinned[1]), "its releases share the environment"
    assert main(["install", "paged"]) == 2
    assert (
        "ENGINE 'paged' cannot be installed; these can: ctranslate2, llama-server, "
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("name", libraries.LIBRARIES)
def test_each_library_is_pinned_and_without_it_skipped_by_name(
    name: str, model: PreTrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = libraries.LIBRARIES[name]
    lines = [line.partition("#")[0].strip() for line in released.requirements.read_text().splitlines()]
    assert list(filter(None, lines)), f"{released.requirements} pins nothing"
    assert all("==" in line for line in lines if line), "each line is pinned with =="
    assert released.program is None or released.program.is_file()
    monkeypatch.setattr(libraries, "ENVIRONMENTS", tmp_path)
    with pytest.raises(UnsupportedModelError, match=f"python -m batchproof install {name}"):
        resolve_engine(name).factory(model, EngineConfig())
    words = "python is '/no', but must be the path of a Python whose"
    with pytest.raises(UsageError, match="unknown option 'python'" if released.build else words):
        resolve_engine(f"{name}?python=/no").factory(model, EngineConfig())


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    path = tmp_path / "adding.py"
    path.write_text(textwrap.dedent(ADDING).format(programs=str(PROGRAMS)))
    program = Program("adding", (sys.executable, "-S", str(path), json.dumps({"by": 2})), str(tmp_path))
    process = program.process()
    yield process
    process.kill("was ended by the test")


def ask(process: Process, op: str, **fields: Any) -> Any:
    return process.ask({"op": op, "engine": 1, **fields}, protocol.ANSWERS[op])


def build(process: Process, dtype: str = "float32", max_num_seqs: int = 8) -> Any:
    config = {"max_num_seqs": max_num_seqs}
    return ask(process, "build", model="/m", dtype=dtype, config=config, threads=1)


def test_a_program_serves_and_the_output_of_its_library_is_not_an_answer(process: Process) -> None:
    assert build(process) == protocol.Built()
    engine = SteppingPipedEngine(process, 1)
    assert (engine.release, engine.notes) == ("adding 1.0", ("adds 2",))
    requests = [Request("a", (4, 5), 2, frozenset({6})), Request("b", (), 2), Request("c", (8,), 1)]
    assert engine.generate(requests) == [
        Completion("a", (5, 6), FinishReason.STOP),
        Completion.refused("b", "empty"),
        Completion("c", (9,), FinishReason.LENGTH),
    ]
    engine.add(Request("a", (1,), 1))
    engine.add(Request("b", (1,), 1))
    with pytest.raises(ValueError, match="'a' is live already"):
        engine.add(Request("a", (1,), 1))
    engine.abort("b")
    assert engine.step() == [TokenEvent("a", 7, FinishReason.LENGTH)]
    assert not engine.has_unfinished
    engine.close()


def test_a_refusal_or_an_exception_of_a_library_is_reported(process: Process, tmp_path: Path) -> None:
    assert build(process, "bfloat16") == protocol.Built("only float32")
    with pytest.raises(RuntimeError, match="ValueError: three is too many"):
        build(process, max_num_seqs=3)
    with pytest.raises(RuntimeError, match="KeyError: 1"):
        ask(process, "step")
    for by, words in ((10, "by is above 9"), (True, "by is True, but must be a whole number")):
        command = (sys.executable, "-S", str(tmp_path / "adding.py"), json.dumps({"by": by}))
        with pytest.raises(RuntimeError, match=f"ValueError: {words}"):
            Program("adding", command, str(tmp_path)).process()


def test_requests_of_equal_settings_are_one_call_and_answers_keep_their_places() -> None:
    def request(name: str, cap: int, eos: Sequence[int] = ()) -> Any:
        return {"request_id": name, "max_new_tokens": cap, "eos_token_ids": eos}

    calls = []

    def answer(call: Sequence[Any]) -> list[str]:
        calls.append([each["request_id"] for each in call])
        return calls[-1]

    requests = [request("a", 2, [5]), request("b", 2), request("c", 0), request("d", 0)]
    requests += [request("e", 3, [5]), request("f", 3)]
    refusals = [*[None] * 5, "too long"]
    answers = serving.in_calls(requests, refusals, lambda each: len(each["eos_token_ids"]), answer)
    assert calls == [["b"], ["a", "e"], ["c"], ["d"]]
    assert answers[:5] == [*"abcde"]
    assert str(answers[5]) == "too long"


def test_a_folder_is_made_once_and_is_whole_or_not_there(tmp_path: Path) -> None:
    target = tmp_path / "converted"
    made: list[Path] = []

    def make(folder: Path) -> None:
        folder.mkdir()
        (folder / "weights").touch()
        made.append(folder)
        if len(made) == 1:
            raise serving.Unsupported("half")
        if len(made) == 2:  # as another process would
            serving.made_once(target, make)

    with pytest.raises(serving.Unsupported, match="half"):
        serving.made_once(target, make)
    assert list(tmp_path.iterdir()) == []
    for _ in range(2):
        assert serving.made_once(target, make) == target
    assert len(made) == 3
    assert list(tmp_path.iterdir()) == [target]


def local_server(tmp_path: Path, text: str) -> LocalServer:
    path = tmp_path / "server.py"
    path.write_text(textwrap.dedent(text))
    return LocalServer("frail", (sys.executable, "-S", str(path), "{port}"))


def test_a_server_that_has_failed_is_started_again(tmp_path: Path) -> None:
    local = local_server(tmp_path, FRAIL)
    first = local.running()
    assert local.running() is first, "it is kept as long as it works"
    with pytest.raises(EngineFailed, match="broke the connection"):
        first.exchange("POST", "/completions", {}).read()
    second = local.running()
    assert second is not first
    assert second.base_url != first.base_url
    assert second.exchange("GET", "/models").read() == {}
    local._end()


def test_what_a_server_writes_is_counted_since_the_last_time(tmp_path: Path) -> None:
    local = local_server(tmp_path, FRAIL)
    events = {"restored": "came back", "evicted": "went"}
    assert local.counted(events) == {"restored": 0, "evicted": 0}, "it does not run yet"
    server = local.running()
    local.counted(events)
    for _ in range(3):
        server.ask("GET", "/models")
    assert local.counted(events) == {"restored": 3, "evicted": 0}
    assert local.counted(events) == {"restored": 0, "evicted": 0}
    local._end()


def test_a_server_that_does_not_start_is_reported(tmp_path: Path) -> None:
    words = "the server of engine 'frail' exited with status 1; the last lines .*\n    out of cheese"
    with pytest.raises(UsageError, match=words):
        local_server(tmp_path, "raise SystemExit('out of cheese')").running()


def test_a_server_whose_start_is_cut_short_is_ended(tmp_path: Path) -> None:
    local = local_server(tmp_path, "import time; time.sleep(600)")
    with pytest.raises(EngineHang), time_limit(0.5, "the start"):
        local.running()
    assert local._end.peek() is None, "it was called"
