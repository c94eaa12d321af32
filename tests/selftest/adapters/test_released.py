"""Released engines in environments of their own: how they are found, asked, and restarted."""

import json
import subprocess
import sys
import textwrap
from collections.abc import Sequence
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
from batchproof_engines.adapters.piped.engine import factory_of
from batchproof_engines.adapters.piped.process import Program
from batchproof_engines.adapters.released import libraries, serving
from batchproof_engines.adapters.released.server import LocalServer

PROGRAMS = Path(libraries.__file__).parent

# A library whose engine answers with each token of the prompt plus one.
ADDING = """
    import sys
    sys.path.insert(0, {programs!r})
    from serving import Stepped, Unsupported, event_of, serve

    class Engine(Stepped):
        def submit(self, request):
            print("a library that prints")
            if not request["prompt_token_ids"]:
                raise ValueError("empty")
            return [token + 1 for token in request["prompt_token_ids"]]
        def advance(self):
            events = []
            for name, left in [*self.live.items()]:
                events.append(event_of(name, left.pop(0), None if left else "stop"))
                if not left:
                    del self.live[name]
            return events
        def cancel(self, left):
            left.clear()
        def close(self):
            print("closed", file=sys.stderr)

    class Library:
        name, version, capabilities = "adding", "1.0", ["stepping"]
        def __init__(self, by: int = 1):
            if by > 9:
                raise ValueError("by is above 9")
            self.notes = [f"adds {{by}}"]
        def build(self, folder, dtype, config, num_threads):
            if config["max_num_seqs"] == 2:
                raise Unsupported("two are too few")
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


def adding(tmp_path: Path, by: object = 2) -> Program:
    path = tmp_path / "adding.py"
    path.write_text(textwrap.dedent(ADDING).format(programs=str(PROGRAMS)))
    return Program("adding", (sys.executable, "-S", str(path), json.dumps({"by": by})), str(tmp_path))


def test_a_program_serves_and_the_output_of_its_library_is_not_an_answer(
    model: PreTrainedModel, tmp_path: Path
) -> None:
    engine: Any = factory_of(adding(tmp_path))(model, EngineConfig())
    assert (engine.release, engine.notes) == ("adding 1.0", ("adds 2",))
    requests = [Request("a", (4, 5), 2, frozenset({6})), Request("b", (), 2), Request("a", (1,), 1)]
    assert engine.generate(requests) == [
        Completion("a", (5, 6), FinishReason.STOP),
        Completion.refused("b", "empty"),
        Completion.refused("a", "request_id 'a' is used twice in this call"),
    ]
    for request in (Request("a", (1, 2), 2), Request("b", (1,), 1), Request("c", (), 1)):
        engine.add(request)
    with pytest.raises(ValueError, match="'a' is live already"):
        engine.add(Request("a", (1,), 1))
    engine.abort("b")
    assert engine.step() == [TokenEvent.refused("c", "empty"), TokenEvent("a", 2)]
    assert engine.has_unfinished
    assert engine.step() == [TokenEvent("a", 3, FinishReason.STOP)]
    assert not engine.has_unfinished
    engine.close()


def test_a_refusal_or_an_exception_of_a_library_is_reported(
    model: PreTrainedModel, tmp_path: Path
) -> None:
    factory = factory_of(adding(tmp_path))
    with pytest.raises(UnsupportedModelError, match="'adding' cannot serve GPT2LMHeadModel: two"):
        factory(model, EngineConfig(max_num_seqs=2))
    with pytest.raises(RuntimeError, match="ValueError: three is too many"):
        factory(model, EngineConfig(max_num_seqs=3))
    for by, words in ((10, "by is above 9"), (True, "by is True, but must be a whole number")):
        with pytest.raises(RuntimeError, match=f"ValueError: {words}"):
            adding(tmp_path, by).process()


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
    kind = libraries.ServerCommand((), {}, {}, events={"restored": "came back", "evicted": "went"})
    return LocalServer("frail", (sys.executable, "-S", str(path), "{port}"), kind)


def test_a_server_that_has_failed_is_started_again_and_what_it_writes_is_counted(
    tmp_path: Path,
) -> None:
    local = local_server(tmp_path, FRAIL)
    first = local.running()
    assert local.running() is first, "it is kept as long as it works"
    with pytest.raises(EngineFailed, match="broke the connection"):
        first.exchange("POST", "/completions", {}).read()
    second = local.running()
    assert second is not first
    assert second.base_url != first.base_url
    local.counted()
    for _ in range(3):
        assert second.ask("GET", "/models") == {}
    assert local.counted() == {"restored": 3, "evicted": 0}
    assert local.counted() == {"restored": 0, "evicted": 0}, "since the last time"
    local._end()


def test_a_server_that_does_not_start_is_reported(tmp_path: Path) -> None:
    words = "the server of engine 'frail' exited with status 1; the last lines .*\n    out of cheese"
    with pytest.raises(UsageError, match=words):
        local_server(tmp_path, "raise SystemExit('out of cheese')").running()


def test_a_server_whose_start_is_cut_short_is_ended(tmp_path: Path) -> None:
    local = local_server(tmp_path, "import time; time.sleep(600)")
    with pytest.raises(EngineHang), time_limit(0.5, "the start"):
        local.running()
    assert local._child.popen.returncode is not None
