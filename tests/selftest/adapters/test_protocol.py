"""The protocol of piped engines is defined once: page and example agree with `protocol.py`."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import fields
from typing import get_args

import pytest

from batchproof.api import CHOOSING, SamplingParams, TokenLogprobs
from batchproof.places import ROOT
from batchproof_engines.adapters.piped import protocol

PAGE = (ROOT / "docs" / "piped_engines.md").read_text()
EXAMPLE = (ROOT / "docs" / "examples" / "piped_engine.py").read_text()
MESSAGES = {
    "request": protocol.Request,
    "completion": protocol.Completion,
    "event": protocol.Event,
    "sampling": protocol.Sampling,
    "logprobs": protocol.Logprobs,
}


def table_rows() -> dict[str, str]:
    """The page's answers by the operation of the question in the same row."""
    rows = re.findall(r'^\| `\{"op": "(\w+)".*?` \| (.*) \|$', PAGE, re.MULTILINE)
    return dict(rows)


def test_the_page_explains_every_operation() -> None:
    assert set(table_rows()) == set(protocol.ANSWERS) == set(get_args(protocol.Operation))


@pytest.mark.parametrize("operation", protocol.ANSWERS)
def test_the_page_names_every_field_of_an_answer(operation: str) -> None:
    named = set(re.findall(r'"(\w+)":', table_rows()[operation]))
    assert named == set(protocol.fields(protocol.ANSWERS[operation]))


@pytest.mark.parametrize("name", MESSAGES)
def test_the_page_shows_every_field_of_a_message(name: str) -> None:
    shown = re.search(rf"^{name} +(\{{.*\}})$", PAGE, re.MULTILINE)
    assert shown is not None, f"the page shows no {name}"
    assert set(json.loads(shown[1])) == set(protocol.fields(MESSAGES[name]))


def test_the_protocol_has_all_that_a_request_may_ask_for() -> None:
    assert set(protocol.CHOOSING) == CHOOSING
    assert protocol.fields(protocol.Sampling) == tuple(each.name for each in fields(SamplingParams))
    assert protocol.fields(protocol.Logprobs) == TokenLogprobs._fields


def test_the_page_and_the_suite_speak_the_same_version() -> None:
    assert f'"protocol": {protocol.VERSION}}}' in PAGE
    assert f'"capabilities": ["{protocol.STEPPING}"]' in PAGE


def test_the_example_answers_with_known_fields_only() -> None:
    known = {field for answer in protocol.ANSWERS.values() for field in protocol.fields(answer)}
    known |= {field for message in MESSAGES.values() for field in protocol.fields(message)}
    known |= set(protocol.fields(protocol.Failed))
    dicts = [node for node in ast.walk(ast.parse(EXAMPLE)) if isinstance(node, ast.Dict)]
    keys = {key.value for each in dicts for key in each.keys if isinstance(key, ast.Constant)}
    assert keys
    assert keys <= known
