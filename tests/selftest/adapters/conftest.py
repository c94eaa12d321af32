"""A program that stands in for an engine behind a pipe, in plain Python without torch, and the fixtures
that start it."""

import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from batchproof.api import Completion, EngineConfig, FinishReason, Request
from batchproof.models.catalogue import load_model
from batchproof.run.registry import resolve_engine

Command = Callable[..., str]
Build = Callable[..., Any]

# Answers at once and correctly except for the tokens. A test appends code that changes one thing.
PROGRAM = """
import json, os, signal, sys, time

OUT = sys.stdout
HELLO = {"name": "stand-in", "version": "0.1"}
engines, live = {}, []

def completion(request):
    cap = request["max_new_tokens"]
    return {"request_id": request["request_id"], "token_ids": [7] * cap, "finish_reason": "length"}

def generate(question):
    return {"completions": [completion(each) for each in question["requests"]]}

def hello(question):
    return HELLO

def build(question):
    engines[question["engine"]] = question
    return {}

def close(question):
    del engines[question["engine"]]
    return {}

def say(text):
    OUT.write(text)
    OUT.flush()

def main():
    for line in sys.stdin:
        question = json.loads(line)
        say(json.dumps(globals()[question["op"]](question)) + "\\n")
"""
STEPPING = """
HELLO["capabilities"] = ["stepping"]
def add(question):
    request = question["request"]
    if request["request_id"] in [each["request_id"] for each in live]:
        return {"live": True}
    live.append(request)
    return {}
def step(question):
    done = live.pop(0)
    return {"events": [{"request_id": done["request_id"], "token_id": 7, "finish_reason": "length"}]}
def abort(question):
    live[:] = [each for each in live if each["request_id"] != question["request_id"]]
    return {}
def has_unfinished(question):
    return {"has_unfinished": bool(live)}
"""
PLAIN = "plain = generate"  # for the function that replaces it to call
REQUESTS = [Request("a", (1, 2), 3), Request("b", (9,), 1, frozenset({5, 4}))]
ANSWERS = [Completion("a", (7, 7, 7), FinishReason.LENGTH), Completion("b", (7,), FinishReason.LENGTH)]


def generating(body: str) -> str:
    """Returns code that does this instead of answering `generate`."""
    return f"def generate(question):\n    {body}"


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return load_model("gpt2-random", torch.device("cpu"), torch.float32).model


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """Returns a function for the stand-in's command line with a change; None keeps the last one."""

    def command(change: str | None = "") -> str:
        path = tmp_path / "engine.py"
        if change is not None:
            path.write_text(f"{PROGRAM}\n{change}\nmain()\n")
        return shlex.join([sys.executable, "-S", "-E", str(path)])

    return command


@pytest.fixture
def build(command: Command, model: PreTrainedModel) -> Iterator[Build]:
    made = []

    def build(change: str | None = "", **config: Any) -> Any:
        engine = resolve_engine(f"cmd:{command(change)}").factory(model, EngineConfig(**config))
        made.append(engine._process)
        return engine

    yield build
    for process in made:
        process.kill("was ended by the test")
