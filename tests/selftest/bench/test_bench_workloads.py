"""What a benchmark asks: the same requests everywhere, and no slip in a file or a flag goes unnamed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from batchproof.bench.spec import BenchSpec, Range, SharedPrefix
from batchproof.bench.spec_files import load_specs, override, select_specs
from batchproof.errors import CaseError, UsageError

NAMES = ["bimodal", "bs1", "long_prompts", "prefix_repetition", "ragged", "uniform"]
SPEC = BenchSpec("small", "To see.", 6, Range(3, 9), ((1.0, Range(2, 4)),), 2)
GOOD = """\
name: small
why: To see.
num_requests: 6
prompt_len: [3, 9]
cap: [2, 4]
slots: 2
seed: 0
on_cpu: {num_requests: 3}
"""


def write(directory: Path, text: str, name: str = "small.yaml") -> Path:
    (directory / name).write_text(text, encoding="utf-8")
    return directory


def complaint(tmp_path: Path, text: str) -> str:
    """What reading the text as `small.yaml` says, without the directory."""
    with pytest.raises(CaseError) as caught:
        load_specs(write(tmp_path, text), on_cpu=False)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path}/"), message
    return message.removeprefix(f"{tmp_path}/")


def test_the_ragged_workload_has_the_totals_that_others_publish() -> None:
    spec = load_specs(on_cpu=False)["ragged"]
    totals = spec.realise(vocab_size=151_936, context_len=4096).totals()
    sizes = {"num_requests": 256, "num_prompt_tokens": 142_827, "max_output_tokens": 133_966}
    assert totals == sizes


def test_the_built_in_workloads_are_there_for_both_kinds_of_machine() -> None:
    full, scaled = load_specs(on_cpu=False), load_specs(on_cpu=True)
    assert list(full) == list(scaled) == NAMES
    for name in NAMES:
        large, small = (each[name].realise(4096, 8192) for each in (full, scaled))
        assert large.totals()["max_output_tokens"] > small.totals()["max_output_tokens"]
        assert large.spec.why == small.spec.why


@pytest.mark.parametrize("name", NAMES)
def test_on_a_cpu_there_are_more_requests_than_slots_and_the_work_is_small(name: str) -> None:
    spec = load_specs(on_cpu=True)[name]
    totals = spec.realise(4096, 1024).totals()  # a context that gpt2 has too
    assert spec.num_requests > 2 * spec.slots
    assert 150 <= totals["max_output_tokens"] <= 900
    assert (spec.slots == 1) == (name == "bs1")


def test_the_hash_sees_everything_that_an_engine_is_given_and_nothing_else() -> None:
    changes = [
        {"seed": 1},
        {"slots": 3},
        {"max_num_batched_tokens": 64},
        {"prefix_caching": True},
        {"num_requests": 7},
        {"cap": ((1.0, Range(2, 5)),)},
        {"shared_prefix": SharedPrefix(2, 2)},
    ]
    variants = [SPEC, *(replace(SPEC, **each) for each in changes)]  # type: ignore[arg-type]
    hashes = [each.realise(100, 64).hash for each in variants] + [SPEC.realise(101, 64).hash]
    assert len(set(hashes)) == len(hashes)
    # Made once: a change makes all stored result files incomparable.
    renamed = replace(SPEC, name="other", why="For another reason.")
    assert renamed.realise(100, 64).hash == hashes[0] == "c53d909db7ed"


def test_an_engine_knows_the_longest_request_when_it_is_built() -> None:
    """One that makes its pool then made it for the model's whole context, or let it grow in a lap."""
    spec = replace(SPEC, prompt_len=Range(3, 9), cap=((1.0, Range(1, 20)),))
    workload = spec.realise(100, 64)
    lens = [len(r.prompt_token_ids) + r.max_new_tokens for r in workload.requests]
    assert workload.config.max_model_len == max(lens)


def test_prompts_do_not_depend_on_how_caps_are_drawn() -> None:
    mixture = ((0.5, Range(1, 2)), (0.5, Range(8, 9)))
    plain, mixed = SPEC.realise(100, 64), replace(SPEC, cap=mixture).realise(100, 64)
    assert [r.prompt_token_ids for r in plain.requests] == [r.prompt_token_ids for r in mixed.requests]


def test_lengths_and_caps_reach_both_ends_of_their_ranges_and_stay_inside() -> None:
    workload = replace(SPEC, num_requests=200).realise(50, 64)
    assert {len(r.prompt_token_ids) for r in workload.requests} == set(range(3, 10))
    assert {r.max_new_tokens for r in workload.requests} == {2, 3, 4}
    assert all(0 <= token < 50 for r in workload.requests for token in r.prompt_token_ids)
    assert not any(r.eos_token_ids for r in workload.requests)


def test_a_mixture_keeps_its_shares() -> None:
    mixture = ((0.75, Range(1, 2)), (0.25, Range(8, 9)))
    workload = replace(SPEC, num_requests=400, cap=mixture).realise(50, 64)
    caps = [r.max_new_tokens for r in workload.requests]
    assert set(caps) == {1, 2, 8, 9}
    assert 0.20 < sum(cap >= 8 for cap in caps) / 400 < 0.30


def test_requests_of_a_group_share_a_prefix_and_differ_behind_it() -> None:
    spec = replace(SPEC, prompt_len=Range(6, 9), shared_prefix=SharedPrefix(4, 2))
    prompts = [r.prompt_token_ids for r in spec.realise(1000, 64).requests]
    assert {p[:4] for p in prompts[0::2]} == {prompts[0][:4]}
    assert {p[:4] for p in prompts[1::2]} == {prompts[1][:4]}
    assert prompts[0][:4] != prompts[1][:4]
    assert len({p[4:] for p in prompts}) == len(prompts)


def test_a_spec_is_plain_data() -> None:
    spec = replace(SPEC, shared_prefix=SharedPrefix(2, 2))
    plain = spec.as_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert plain["prompt_len"] == [3, 9]
    assert plain["cap"] == [{"share": 1.0, "range": [2, 4]}]
    assert plain["shared_prefix"] == {"length": 2, "num_groups": 2}


def test_a_request_beyond_the_context_is_refused_by_name() -> None:
    with pytest.raises(UsageError) as caught:
        replace(SPEC, prompt_len=Range(9, 9), cap=((1.0, Range(4, 4)),)).realise(100, 12)
    assert str(caught.value).startswith(
        "the largest request of workload 'small' has 9 prompt tokens and a cap of 4, but "
        "the model's context holds 12"
    )


def test_a_file_gives_the_workload_and_its_twin(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    assert load_specs(tmp_path, on_cpu=False) == {"small": SPEC}
    assert load_specs(tmp_path, on_cpu=True) == {"small": replace(SPEC, num_requests=3)}


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "seed: 0",
            "sede: 0",
            "7: a workload: key 'sede' is unknown; choose one of name, why, num_requests",
        ),
        ("seed: 0\n", "", "1: a workload lacks the key 'seed'"),
        ("seed: 0", "seed: -1", "7: seed is -1, but must be at least 0"),
        ("slots: 2", "slots: two", "6: slots is 'two', a text, but must be a whole number"),
        ("slots: 2", "slots: 0", "6: slots is 0, but must be at least 1"),
        ("[3, 9]", "[9, 3]", "4: prompt_len is [9, 3], but must be [LOW, HIGH] with LOW <= HIGH"),
        ("[3, 9]", "[3]", "4: prompt_len is [3], but must be [LOW, HIGH] with LOW <= HIGH"),
        ("[3, 9]", "[0, 9]", "4: an end of prompt_len is 0, but must be at least 1"),
        ("[3, 9]", "3:9", "4: prompt_len is '3:9', a number, but must be a list"),
        ("[3, 9]", "[3, 4000]", "1: max_num_batched_tokens is 2048, but must be at least 4000, for a"),
        ("[2, 4]", "[]", "5: cap is an empty list, but must hold at least one item"),
        ("[2, 4]", "[{share: 0.5, range: [2, 4]}]", "5: cap has the shares 0.5, but they must be"),
        ("[2, 4]", "[{share: 1, range: [4, 2]}]", "5: range is [4, 2], but must be [LOW, HIGH]"),
        ("[2, 4]", "[{share: 1}]", "5: a part of cap lacks the key 'range'"),
        ("[2, 4]", "[{share: .inf, range: [2, 4]}]", "5: share is '.inf', a decimal number, but"),
        ("seed: 0", "seed: 0\narrival_rate: 8", "8: a workload: key 'arrival_rate' is unknown"),
        (
            "seed: 0",
            "seed: 0\nshared_prefix: {length: 3, num_groups: 2}",
            "4: prompt_len is 3..9, but must be above 3",
        ),
        ("seed: 0", "seed: 0\nshared_prefix: {length: 2, num_groups: 6}", "3: num_requests is 6, but"),
        ("{num_requests: 3}", "{num_requests: 0}", "8: num_requests is 0, but must be at least 1"),
        (
            "{num_requests: 3}",
            "{why: Less.}",
            "8: on_cpu: key 'why' is unknown; choose one of num_requests",
        ),
        ("{num_requests: 3}", "small", "8: on_cpu is 'small', a text, but must be a mapping"),
        ("name: small", "name: big", "1: name is 'big', but must be that of the file, 'small'"),
        ("To see.", '" "', "2: why is empty, but must say what the workload shows"),
        (GOOD, "", "1: the file is empty, but must hold a workload"),
        (GOOD, "- 1\n", "1: a workload is a list, but must be a mapping"),
    ],
)
def test_every_slip_in_a_file_is_named_with_its_line(
    tmp_path: Path, old: str, new: str, says: str
) -> None:
    assert old in GOOD
    text = complaint(tmp_path, GOOD.replace(old, new))
    assert text.removeprefix("small.yaml:").startswith(says) or says in text, text


def test_a_file_that_would_be_overlooked_is_named(tmp_path: Path) -> None:
    write(tmp_path, GOOD, "small.yml")
    with pytest.raises(CaseError, match=r"a workload must end in \.yaml, or it would be overlooked"):
        load_specs(tmp_path, on_cpu=True)
    (tmp_path / "small.yml").unlink()
    with pytest.raises(CaseError, match="there is no workload"):
        load_specs(tmp_path, on_cpu=True)


def test_workloads_are_selected_by_name_each_once() -> None:
    names = [each.name for each in select_specs(["ragged", "bs1", "ragged"], on_cpu=True)]
    assert names == ["ragged", "bs1"]
    assert [each.name for each in select_specs([], on_cpu=False)] == NAMES


def test_workloads_are_selected_by_file_and_by_folder(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    write(tmp_path, GOOD.replace("small", "other"), "other.yaml")
    one = select_specs([str(tmp_path / "small.yaml"), "bs1"], on_cpu=False)
    assert [each.name for each in one] == ["small", "bs1"]
    assert [each.name for each in select_specs([str(tmp_path)], on_cpu=False)] == ["other", "small"]


def test_a_workload_that_is_unknown_or_named_as_another_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=f"--workload 'rag' is unknown; choose one of {', '.join(NAMES)}"
    ):
        select_specs(["ragged", "rag"], on_cpu=True)
    write(tmp_path, GOOD.replace("small", "bs1"), "bs1.yaml")
    with pytest.raises(UsageError, match="another workload is called 'bs1' as well"):
        select_specs(["bs1", str(tmp_path)], on_cpu=True)


def test_flags_change_the_size_and_nothing_else() -> None:
    spec = load_specs(on_cpu=True)["bimodal"]
    assert override(spec) == spec
    numbers = {"num_requests": 5, "slots": 2, "seed": 3}
    changed = override(spec, prompt_len="7:9", cap="4", **numbers)
    assert changed == replace(spec, prompt_len=Range(7, 9), cap=((1.0, Range(4, 4)),), **numbers)


def test_the_token_budget_grows_with_a_longer_prompt_and_more_slots() -> None:
    assert override(SPEC, prompt_len="10:4000").max_num_batched_tokens == 4000
    assert override(SPEC, slots=3000).config.max_num_batched_tokens == 3000


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"num_requests": 0}, "--num-requests is 0, but must be at least 1"),
        ({"slots": -1}, "--slots is -1, but must be at least 1"),
        ({"seed": -1}, "--seed is -1, but must be at least 0"),
        (
            {"prompt_len": "9:3"},
            "--prompt-len is 9..3, but must be a range LOW..HIGH with 1 <= LOW <= HIGH",
        ),
        ({"prompt_len": "3-9"}, "--prompt-len is '3-9', but must be LO:HI or N, in whole numbers of"),
        ({"cap": "0:4"}, "--cap is 0..4, but must be a range LOW..HIGH with 1 <= LOW <= HIGH"),
        ({"cap": ""}, "--cap is '', but must be LO:HI or N, in whole numbers of tokens"),
    ],
)
def test_a_wrong_flag_is_named_with_its_value_and_the_rule(flags: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        override(SPEC, **flags)  # type: ignore[arg-type]
    assert str(caught.value).startswith(says)
