"""What a benchmark asks: the same requests everywhere, and no slip in a file or a flag goes unnamed."""

from dataclasses import replace
from pathlib import Path

import pytest

from batchproof.api import Request
from batchproof.bench.spec import BenchSpec, Laps, Range, SharedPrefix, renamed
from batchproof.bench.spec_files import override, select_specs
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


def test_the_ragged_workload_has_the_totals_that_others_publish() -> None:
    (spec,) = select_specs(["ragged"], on_cpu=False)
    totals = spec.realise(vocab_size=151_936, context_len=4096).totals()
    sizes = {"num_requests": 256, "num_prompt_tokens": 142_827, "max_output_tokens": 133_966}
    assert totals == sizes


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


def test_requests_of_a_group_share_a_prefix_and_differ_behind_it() -> None:
    spec = replace(SPEC, prompt_len=Range(6, 9), shared_prefix=SharedPrefix(4, 2))
    prompts = [r.prompt_token_ids for r in spec.realise(1000, 64).requests]
    assert {p[:4] for p in prompts[0::2]} == {prompts[0][:4]}
    assert {p[:4] for p in prompts[1::2]} == {prompts[1][:4]}
    assert prompts[0][:4] != prompts[1][:4]
    assert len({p[4:] for p in prompts}) == len(prompts)


def test_a_request_beyond_the_context_is_refused_by_name() -> None:
    with pytest.raises(UsageError) as caught:
        replace(SPEC, prompt_len=Range(9, 9), cap=((1.0, Range(4, 4)),)).realise(100, 12)
    assert str(caught.value).startswith(
        "the largest request of workload 'small' has 9 prompt tokens and a cap of 4, but "
        "the model's context holds 12"
    )


def test_a_file_gives_the_workload_and_its_twin(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    assert select_specs([str(tmp_path)], on_cpu=False) == (SPEC,)
    assert select_specs([str(tmp_path)], on_cpu=True) == (replace(SPEC, num_requests=3),)


def test_lengths_and_caps_reach_both_ends_of_their_ranges_and_stay_inside() -> None:
    """A mixture of caps keeps its shares, and changes no prompt; an engine knows the longest request
    when it is built."""
    mixture = ((0.75, Range(1, 2)), (0.25, Range(8, 9)))
    plain, mixed = (replace(SPEC, num_requests=400, cap=cap) for cap in (SPEC.cap, mixture))
    workload, other = plain.realise(50, 64), mixed.realise(50, 64)
    prompts = [r.prompt_token_ids for r in workload.requests]
    assert {len(each) for each in prompts} == set(range(3, 10))
    assert {r.max_new_tokens for r in workload.requests} == {2, 3, 4}
    assert all(0 <= token < 50 for each in prompts for token in each)
    assert not any(r.eos_token_ids for r in workload.requests)
    assert [r.prompt_token_ids for r in other.requests] == prompts
    caps = [r.max_new_tokens for r in other.requests]
    assert set(caps) == {1, 2, 8, 9}
    assert 0.20 < sum(cap >= 8 for cap in caps) / 400 < 0.30
    lens = [len(r.prompt_token_ids) + r.max_new_tokens for r in other.requests]
    assert other.config.max_model_len == max(lens)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("seed: 0", "seed: -1", "7: seed is -1, but must be at least 0"),
        ("seed: 0", f"seed: {'9' * 5000}", "7: seed is '99999"),
        ("[3, 9]", "[9, 3]", "4: prompt_len is [9, 3], but must be [LOW, HIGH] with LOW <= HIGH"),
        ("[3, 9]", "[3, 4000]", "1: max_num_batched_tokens is 2048, but must be at least 4000, for a"),
        (
            "seed: 0",
            "seed: 0\nshared_prefix: {length: 3, num_groups: 2}",
            "4: prompt_len is 3..9, but must be above 3",
        ),
    ],
)
def test_every_slip_in_a_file_is_named_with_its_line(
    tmp_path: Path, old: str, new: str, says: str
) -> None:
    with pytest.raises(CaseError) as caught:
        select_specs([str(write(tmp_path, GOOD.replace(old, new)))], on_cpu=False)
    assert str(caught.value).startswith(f"{tmp_path}/small.yaml:{says}")


def test_workloads_are_selected_by_name_file_and_folder(tmp_path: Path) -> None:
    def names(*asked: str) -> list[str]:
        return [each.name for each in select_specs(asked, on_cpu=True)]

    assert names("ragged", "bs1", "ragged") == ["ragged", "bs1"]
    assert names() == NAMES
    write(tmp_path, GOOD)
    write(tmp_path, GOOD.replace("small", "other"), "other.yaml")
    assert names(str(tmp_path / "small.yaml"), "bs1") == ["small", "bs1"]
    assert names(str(tmp_path)) == ["other", "small"]
    with pytest.raises(UsageError, match="--workload 'rag' is unknown; choose one of bimodal, bs1"):
        names("ragged", "rag")
    write(tmp_path, GOOD.replace("small", "bs1"), "bs1.yaml")
    with pytest.raises(UsageError, match="another workload is called 'bs1' as well"):
        names("bs1", str(tmp_path))
    write(tmp_path, GOOD, "small.yml")
    with pytest.raises(CaseError, match=r"a workload must end in \.yaml, or it would be overlooked"):
        names(str(tmp_path))


def test_flags_change_the_size_and_nothing_else() -> None:
    (spec,) = select_specs(["bimodal"], on_cpu=True)
    assert override(spec) == spec
    numbers = {"num_requests": 5, "slots": 2, "seed": 3}
    changed = override(spec, prompt_len="7:9", cap="4", **numbers)
    assert changed == replace(spec, prompt_len=Range(7, 9), cap=((1.0, Range(4, 4)),), **numbers)
    assert override(SPEC, prompt_len="10:4000").max_num_batched_tokens == 4000
    assert override(SPEC, slots=3000).config.max_num_batched_tokens == 3000
    with pytest.raises(UsageError, match="--cap is '3-9', but must be LO:HI or N, in whole numbers"):
        override(SPEC, cap="3-9")


def test_laps_ask_other_tokens_of_the_same_lengths() -> None:
    requests = (Request("a", (1, 2, 9), 4), Request("b", (1, 2, 5), 4))
    laps = Laps(requests, vocab_size=256)
    assert laps[0] == requests != laps[1] != laps[2]
    for one, other in (laps[1], laps[2]):
        assert len(one.prompt_token_ids) == len(other.prompt_token_ids) == 3
        assert one.prompt_token_ids[:2] == other.prompt_token_ids[:2]  # a shared prefix stays
    assert laps[1] is laps[1]
    assert renamed(requests, 256, laps.seeds[0]) == laps[1]
