"""The curated cases are linted data, and every way to get one wrong says where and what."""

import re
from pathlib import Path

import pytest

from batchproof.api import EngineConfig, Request, SamplingParams
from batchproof.cases.files import load_cases, load_file
from batchproof.cases.runner import slips, workloads_of
from batchproof.errors import CaseError
from batchproof.models.embedded import EMBEDDED
from batchproof.oracle.oracle import Oracle
from batchproof.requirements.promises import Promise
from batchproof.workload.paste import as_yaml
from batchproof.workload.workloads import Workload

GOOD = "- {name: a-case, promise: P1, why: It broke., requests: [{prompt: [1], max_new_tokens: 2}]}\n"
ONE = "prompt: [1], max_new_tokens: 1"  # a good request


def with_request(request: str) -> str:
    return f"- name: a-case\n  promise: P1\n  why: It broke.\n  requests:\n    - {request}\n"


def with_key(line: str) -> str:
    """A good case with one more line, which is line 2."""
    rest = "promise: P1\n  why: It broke.\n  requests: [{prompt: [1], max_new_tokens: 2}]"
    return f"- name: a-case\n  {line}\n  {rest}\n"


def test_the_cases_keep_the_rules_of_their_folder(oracle: Oracle) -> None:
    cases = load_cases()
    # A grade of invariance is declared by an engine, not asked for in a workload.
    assert {case.promise for case in cases} == {*Promise} - {
        Promise.P20,
        Promise.P21,
        Promise.P22,
        Promise.P23,
    }
    link = re.compile(r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+")
    restricted = [case.name for case in cases if case.models]
    assert len(restricted) <= 3, f"each of them is a skip for {len(EMBEDDED)} models: {restricted}"
    for case in cases:
        says_none = re.search(r"[Nn]o (public report|thread) is known", case.why) is not None
        assert says_none == (case.link is None), f"{case.place}: name a link, or say in its why: none"
        assert case.link is None or link.fullmatch(case.link), f"{case.place}: {case.link}"
        file_name = Path(case.place.path).name
        assert int(file_name[1:3]) == int(case.promise.id[1:]), f"{case.place} is about {case.promise}"
        total = sum(spec.cap for spec in case.requests if isinstance(spec.cap, int))
        assert total <= 60, f"{case.place}: all engines run it, so {total} new tokens are too many"
        assert "smoke" not in case.name, f"{case.place}: `pytest -k smoke` is for a single test"
        if not case.models or oracle.subject.name in case.models:
            workloads_of(case, oracle)
            assert not slips(case, oracle), f"{case.place}: {slips(case, oracle)}"


WRONG_FILES = [
    ("", "1: the file is empty"),
    (GOOD + "- [\n", "3: this is no valid YAML"),
    ("- promise: P1\n  why: x\n", "1: a case lacks the key 'name'"),
    (GOOD.replace("a-case", "12"), "1: name is '12', a number, but must be a text (put it in quotes)"),
    (
        with_key("calls: [[{prompt: [1], max_new_tokens: 2}]]"),
        "1: case 'a-case' must have either the key 'requests' or the key 'calls'",
    ),
    (with_request(f"{{id: a, {ONE}}}\n    - {{id: a, {ONE}}}"), "6: id 'a' is that of "),
]
WRONG_KEYS = [
    ("promis: P1", "a case has no key 'promis'; do you mean promise?"),
    ("config: {max_num_seqs: 0}", "EngineConfig.max_num_seqs is 0, but must be at least 1"),
    ("link: a/b#7", "link is 'a/b#7', but must be the http or https URL of a public thread"),
]
WRONG_REQUESTS = [  # the last four are wrong for the model alone
    ("{prompt: 7, max_new_tokens: 1}", "prompt is '7', a number, but must be a text, a list of ids, {"),
    ("{prompt: [], max_new_tokens: 1}", "request 'r0' is a bad one on gpt2-random"),
    (
        "{prompt: [1, 2], max_new_tokens: 1, eos: ['prompt[2]']}",
        "eos prompt[2] does not exist: there are 2",
    ),
    (
        "{prompt: [1], max_new_tokens: 4, eos: [300], grammar: {regex: abc}}",
        "request 'r0' is a bad one on gpt2-random (eos_token_ids is empty, or unknown",
    ),
    (
        "{prompt: [1], max_new_tokens: 4, eos: [2, 98], grammar: {regex: abc}}",
        "eos 98 of request 'r0' stands in texts of its regex",
    ),
]
WRONG = [*WRONG_FILES, *((with_key(line), f"2: {says}") for line, says in WRONG_KEYS)]
WRONG += [(with_request(each), f"5: {says}") for each, says in WRONG_REQUESTS]


@pytest.mark.parametrize(("text", "says"), WRONG)
def test_a_wrong_case_file_names_line_value_and_rule(
    tmp_path: Path, oracle: Oracle, text: str, says: str
) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(CaseError, match=f"^{re.escape(f'{path}:{says}')}"):
        workloads_of(load_cases(tmp_path)[0], oracle)


def test_a_prompt_above_the_budget_needs_an_engine_that_feeds_it_in_parts(tmp_path: Path) -> None:
    text = with_key("config: {max_num_batched_tokens: 8}")
    for length, needs in ((8, ()), (9, ("chunked_prefill",))):
        longer = re.sub(r"prompt: .*?, max", f"prompt: {{length: {length}, seed: 1}}, max", text)
        (tmp_path / "made.yaml").write_text(longer)
        (case,) = load_cases(tmp_path)
        assert case.needs == needs


def test_an_engine_is_not_asked_for_parameters_that_it_does_not_take() -> None:
    (case,) = [case for case in load_cases() if case.name == "greedy-beside-drawn"]
    assert case.lacking({"temperature"}) == ["top_k", "top_p", "seed"]
    assert not case.lacking({"temperature", "top_k", "top_p", "seed"})


def test_a_folder_holds_cases_of_different_names(tmp_path: Path) -> None:
    with pytest.raises(CaseError, match=r":1: there is no case file"):
        load_cases(tmp_path)
    for name in ("one.yaml", "two.yaml"):
        (tmp_path / name).write_text(GOOD)
    with pytest.raises(CaseError, match=r"two\.yaml:1: case name 'a-case' is taken by .*one\.yaml:1"):
        load_cases(tmp_path)


def test_an_ending_the_right_answer_does_not_have_is_found(tmp_path: Path, oracle: Oracle) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(with_request("{prompt: [1, 2], max_new_tokens: 3, expect: {num_tokens: 2}}"))
    ((spec, ending),) = slips(load_file(path)[0], oracle)
    assert (spec.place.line, ending) == (5, "3 tokens, and finish length")


EVERYTHING = SamplingParams(
    temperature=0.5,
    top_k=3,
    top_p=0.9,
    min_p=0.1,
    seed=7,
    repetition_penalty=1.5,
    presence_penalty=-1.0,
    frequency_penalty=0.5,
    logit_bias=((1, 2.5), (3, -4.0)),
    allowed_token_ids=frozenset({1, 3}),
    min_tokens=2,
    stop_token_sequences=((1, 3), (3,)),
    logprobs=2,
    prompt_logprobs=0,
)


def test_what_a_failure_prints_loads_as_the_same_workload(tmp_path: Path) -> None:
    """Odd ids, bad input, parameters, arrivals and aborts."""
    workload = Workload(
        (
            Request("yes", (1,), 0),
            Request("1", (), 2),
            Request("a: #b\n'é'", (-1, 300), -3),
            Request("b", (5, 6), 3, frozenset({9, 2}), EVERYTHING),
        ),
        EngineConfig(max_num_seqs=2, num_blocks=9, block_size=3, max_model_len=50, prefix_caching=True),
        arrivals=(0, 3, 0, 1),
        aborts=(("b", 2), ("b", 4), ("1", 5), ("no body", 1), ("off", 2), ("off", 3)),
    )
    path = tmp_path / "printed.yaml"
    path.write_text(as_yaml([workload], "P5") + "\n", encoding="utf-8")
    (case,) = load_file(path)
    assert case.promise is Promise.P5
    assert case.config == workload.config
    assert case.abort_unknown == tuple(
        (name, step) for name, step in workload.aborts if name in ("no body", "off")
    )
    for spec, request in zip(case.requests, workload.requests, strict=True):
        assert (spec.request_id, spec.cap) == (request.request_id, request.max_new_tokens)
        assert spec.prompt == request.prompt_token_ids
        assert frozenset(spec.eos) == request.eos_token_ids
        assert spec.sampling == request.sampling
