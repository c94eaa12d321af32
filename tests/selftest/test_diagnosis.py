"""A diagnosis names the mistake that was made, says so when it knows none, and changes no verdict."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import cycle, zip_longest
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import pad
from transformers import DynamicCache, PreTrainedModel

from batchproof.api import (
    Capability,
    Completion,
    EngineConfig,
    FinishReason,
    Grammar,
    Request,
    RowRecord,
    SamplingParams,
    TokenEvent,
)
from batchproof.diagnosis.counterfactual import cell_table_of, of_row_numbers
from batchproof.diagnosis.diagnose import diagnose
from batchproof.diagnosis.schedules import plain_events, schedule_of_events
from batchproof.findings.causes import Cause, Diagnosis
from batchproof.models.embedded import LATENT_MODEL, STATE_MODEL, VARIANTS_MODEL
from batchproof.requirements.promises import Promise
from batchproof.run.cancelling import check_run_with_aborts
from batchproof.run.failures import ConformanceFailure, HangFailure
from batchproof.run.laboratory import Laboratory
from batchproof.run.registry import EngineSpec, faults, resolve_engine
from batchproof.run.trial import Trial
from batchproof.workload.workloads import Workload
from batchproof_engines.ragged.engine import RaggedEngine
from tests.selftest.conftest import LaboratoryFor

LENGTHS = (9, 4, 14, 6)


def workload(cap: int = 5, lengths: Sequence[int] = LENGTHS, **limits: Any) -> Workload:
    config = EngineConfig(**{"max_num_seqs": 2, "block_size": 4, **limits}, return_logits=True)
    rows = [tuple((7 * i + 13 * j * j + 3 * j) % 256 for j in range(n)) for i, n in enumerate(lengths)]
    return Workload(tuple(Request(f"r{i}", row, cap) for i, row in enumerate(rows)), config)


@pytest.fixture(scope="module")
def lab(laboratory_for: LaboratoryFor) -> Laboratory:
    return laboratory_for(5.0)


def trial_of(lab: Laboratory, spec: EngineSpec, model: str = "gpt2-random") -> Trial:
    return Trial(lab, spec, lab.oracle(model), Promise.P1)


def diagnosed(trial: Trial, asked: Workload, seconds: float = 60.0) -> Diagnosis:
    with pytest.raises((ConformanceFailure, HangFailure)) as caught:
        trial.check(asked)
    return diagnose(trial, caught.value.failure, seconds)


GPT2, LLAMA, WINDOW = "gpt2-random", "llama-random", "mistral-window"
HASH, CAPPED = VARIANTS_MODEL, "gemma2-hash"  # eager attention, and two kinds of layers
USUAL, IN_CHUNKS = workload(), workload(max_num_batched_tokens=4)
PREEMPTED = workload(cap=10, lengths=(8, 8, 8), num_blocks=6)
JOINING = workload(cap=10, lengths=(8, 3, 8, 4), max_num_seqs=3, num_blocks=6)
ALIKE = [(1, 2, 3, 4, 5, 6, 7, 8, 9), (9, 8, 7, 6, 5), (9, 8, 7, 6, 5, 6, 7, 8, 3)]
CACHED = EngineConfig(1, block_size=4, num_blocks=16, return_logits=True, prefix_caching=True)
PREFIXES = Workload(tuple(Request(f"r{i}", prompt, 2) for i, prompt in enumerate(ALIKE)), CACHED)


def under_adapters(asked: Workload) -> Workload:
    """Returns the workload with requests that name one of two adapters, or none, by turns."""
    names = cycle(("a", None, "b"))
    named = [replace(each, adapter=name) for each, name in zip(asked.requests, names, strict=False)]
    return replace(asked.with_requests(named), adapters=(("a", 1), ("b", 2)))


ADAPTED, CHUNKED = under_adapters(USUAL), under_adapters(IN_CHUNKS)
SHARED = under_adapters(
    PREFIXES.with_requests([replace(PREFIXES.requests[0], request_id=f"r{i}") for i in range(3)])
)
STALE_STATE = "it starts from the states that 'r0' left"
NO_WINDOW = "each later chunk of a prompt starts without the window of the convolution"


NAMED = [
    ("mask_ignores_sequence", USUAL, GPT2, Cause.LEAK, "compares positions only"),
    ("slot_keeps_former_keys", USUAL, GPT2, Cause.STALE, "of the former tenant"),
    ("positions_restart_in_each_chunk", IN_CHUNKS, LLAMA, Cause.POSITION, "restart at 0"),
    ("causal_mask_top_left", IN_CHUNKS, GPT2, Cause.MASK, "top left"),
    ("window_off_by_one", USUAL, WINDOW, Cause.MASK, "7 keys wide, not 6"),
    ("last_prompt_token_fed_twice", USUAL, GPT2, Cause.FEED, "last token again"),
    ("static_without_position_ids", USUAL, GPT2, Cause.PADDING, "off by +5"),
    ("kv_cache_in_bfloat16", USUAL, GPT2, Cause.PRECISION, "kept in bfloat16"),
    ("two_finishers_swap_their_last_tokens", USUAL, GPT2, Cause.ROUTING, "belongs to"),
    ("only_the_prompt_is_recomputed", PREEMPTED, GPT2, Cause.PREEMPTION, "only the prompt"),
    ("every_chunk_is_sampled", IN_CHUNKS, GPT2, Cause.CHUNK, "prompt tokens"),
    ("cap_off_by_one", USUAL, GPT2, Cause.CAP, "the cap is one too high"),
    ("first_key_of_a_block_is_lost", USUAL, CAPPED, Cause.ADDRESSING, "where a decode writes it"),
    ("blocks_known_by_their_own_tokens", PREFIXES, GPT2, Cause.STALE, "from a prefix cache"),
    ("rows_that_join_have_the_experts_of_pads", JOINING, LATENT_MODEL, Cause.STALE, "of its pads"),
    ("adapters_share_their_prefixes", SHARED, HASH, Cause.ADAPTER, "computed under adapter 'a'"),
    ("fused_gates_are_not_adapted", ADAPTED, HASH, Cause.ADAPTER, "left out of gate_proj"),
    ("the_last_adapter_stays", ADAPTED, HASH, Cause.ADAPTER, "under adapter 'a'; it names none"),
    ("chunks_have_no_place_in_the_mapping", CHUNKED, HASH, Cause.ADAPTER, "not end its prompt"),
    ("state_is_left_to_the_next_tenant", USUAL, STATE_MODEL, Cause.STATE, STALE_STATE),
    ("chunks_forget_the_window", IN_CHUNKS, STATE_MODEL, Cause.STATE, NO_WINDOW),
    (
        "the_last_token_of_a_prompt_counts_twice",
        *(USUAL, STATE_MODEL, Cause.STATE, "the token of position 8 is fed to the states twice"),
    ),
]


def asking(sampling: SamplingParams | None, *others: SamplingParams | None, **more: Any) -> Workload:
    """Returns four requests, the first with these parameters, the next with the others."""
    made = workload(cap=6, **more)
    pairs = zip_longest(made.requests, (sampling, *others))
    return made.with_requests([replace(each, sampling=asked) for each, asked in pairs])


FREQUENT = SamplingParams(frequency_penalty=-2.0)
BIASED = SamplingParams(logit_bias=((7, 40.0),))
SCORED = SamplingParams(logprobs=2)
DRAFTED = {"num_speculative_tokens": 3, "draft_agreement": 1.0}
SAID = [  # and a line of the evidence
    (
        "only_the_first_row_is_processed",
        asking(BIASED, BIASED, max_num_seqs=4),
        *(GPT2, Cause.SAMPLING, "without the request's parameters", "made in all rows but the first"),
    ),
    (
        "frequency_counts_the_prompt",
        asking(FREQUENT, FREQUENT),
        *(GPT2, Cause.SAMPLING, "frequency_penalty: the prompt counts as produced", "very answer"),
    ),
    (
        "logprobs_of_the_row_before",
        asking(SCORED, SCORED, SCORED, SCORED, max_num_seqs=4),
        *(GPT2, Cause.LOGPROBS, "of the row before in the batch", "more wrong answers it explains"),
    ),
    (
        "drafted_requests_lose_their_parameters",
        asking(BIASED, **DRAFTED),
        *(GPT2, Cause.SPECULATION, "without the request's parameters", "without speculation: right"),
    ),
    (
        "nearly_right_drafts_are_accepted",
        workload(cap=8, num_speculative_tokens=3, draft_agreement=0.0),
        *(GPT2, Cause.SPECULATION, "keeps rejected drafts in place", "without speculation: right"),
    ),
    (
        "thirty_third_row_has_no_place",
        workload(cap=2, lengths=range(3, 43), max_num_seqs=40),
        *(GPT2, Cause.ROUTING, "belongs to 'r31'", "32 at once: right; 33 at once: wrong"),
    ),
]


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("fault", "asked", "model", "cause", "words", "line"),
    [*((*row, "") for row in NAMED), *SAID],
    ids=lambda value: value if str(value) in faults() else "",
)
def test_the_mistake_is_named(
    lab: Laboratory, fault: str, asked: Workload, model: str, cause: Cause, words: str, line: str
) -> None:
    found = diagnosed(trial_of(lab, resolve_engine(f"fault:{fault}"), model), asked)
    assert (found.cause, words in found.text) == (cause, True), found
    assert found.evidence or cause in (Cause.CHUNK, Cause.PREEMPTION), "the trace itself shows those"
    assert not line or any(line in each for each in found.evidence), found


def test_a_batch_that_is_larger_than_its_slots_is_thought_of(lab: Laboratory) -> None:
    fault = resolve_engine("fault:static_without_position_ids")

    def unbounded(model: PreTrainedModel, config: EngineConfig) -> Any:
        inner = fault.factory(model, replace(config, max_num_seqs=64, return_logits=False))
        return SimpleNamespace(generate=inner.generate, capabilities=frozenset())  # shows no trace

    asked = workload(max_num_seqs=1)
    found = diagnosed(trial_of(lab, EngineSpec("unbounded", unbounded)), asked)
    assert (found.cause, "off by +5" in found.text) == (Cause.PADDING, True), found
    assert any("all requests of a call were in one batch" in each for each in found.evidence)


class _Contrary(RaggedEngine):
    """Answers with tokens that nobody would choose."""

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        given = super().generate([replace(each, sampling=None) for each in requests])
        worst = [tuple(each.logits.argmin(-1).tolist()) for each in given if each.logits is not None]
        pairs = zip(given, worst, strict=True)
        return [replace(each, token_ids=ids, logits=None) for each, ids in pairs]


class _Plain:
    """A batch for each call, without EOS ids, that shows nothing but answers."""

    capabilities: frozenset[Capability] = frozenset()
    chosen: Callable[..., torch.Tensor]  # for all rows, with a cache for each

    def __init__(self, model: PreTrainedModel, _config: EngineConfig) -> None:
        self.model = model

    @torch.inference_mode()
    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        rows = [list(each.prompt_token_ids) for each in requests]
        caches = [DynamicCache() for _ in rows]
        for _ in range(requests[0].max_new_tokens):
            for row, token in zip(rows, self.chosen(rows, caches), strict=True):
                row.append(int(token))
        tokens = [tuple(row[-requests[0].max_new_tokens :]) for row in rows]
        ends = zip(requests, tokens, strict=True)
        return [Completion(r.request_id, each, FinishReason.LENGTH) for r, each in ends]


class _Overwritten(_Plain):
    """Feeds the first prompt with the first token of the last."""

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        first, last = (requests[at].prompt_token_ids for at in (0, -1))
        fed = replace(requests[0], prompt_token_ids=(last[0], *first[1:]))
        return RaggedEngine(self.model, EngineConfig()).generate([fed, *requests[1:]])


def test_what_a_neighbour_says_is_a_leak_and_no_matter_of_pads(lab: Laboratory) -> None:
    asked = workload(cap=2, lengths=(9, 4, 14))
    found = diagnosed(trial_of(lab, EngineSpec("overwritten", _Overwritten), "llama-random"), asked)
    assert found.cause is Cause.LEAK, found
    assert "rewriting the contents of 'r2' changes it" in found.evidence


class _LastColumn(_Plain):
    """Feeds all tokens again, padded on the right, and chooses at the last column of the batch."""

    def chosen(self, rows: list[list[int]], _caches: list[DynamicCache]) -> torch.Tensor:
        width = max(map(len, rows))
        padded = torch.tensor([row + [0] * (width - len(row)) for row in rows])
        return self.model(padded).logits[:, -1].argmax(-1)


class _ZerosInFront(_Plain):
    """Decodes behind caches that zeros pad to the longest, and attends those."""

    def chosen(self, rows: list[list[int]], caches: list[DynamicCache]) -> torch.Tensor:
        if not caches[0].get_seq_length():
            given = zip(rows, caches, strict=True)
            passes = [self.model(torch.tensor([row]), past_key_values=cache) for row, cache in given]
            return torch.stack([each.logits[0, -1].argmax() for each in passes])
        lens = [each.get_seq_length() for each in caches]
        ahead = [(0, 0, max(lens) - each, 0) for each in lens]
        batch = DynamicCache()
        for at in range(len(caches[0].layers)):
            kept = [(each.layers[at], by) for each, by in zip(caches, ahead, strict=True)]
            keys, values = ([pad(getattr(c, it), by) for c, by in kept] for it in ("keys", "values"))
            batch.update(torch.cat(keys), torch.cat(values), at)
        places = torch.tensor(lens)[:, None]
        fed = torch.tensor([[row[-1]] for row in rows])
        logits = self.model(fed, position_ids=places, past_key_values=batch).logits[:, -1]
        for row, cache in enumerate(caches):
            for at, layer in enumerate(batch.layers):
                cache.update(layer.keys[row : row + 1, :, -1:], layer.values[row : row + 1, :, -1:], at)
        return logits.argmax(-1)


class _Exchanged(_Plain):
    """Gives each request the answer to the one behind it."""

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        given = RaggedEngine(self.model, EngineConfig()).generate(requests)
        pairs = zip(requests, [*given[1:], given[0]], strict=True)
        return [replace(each, request_id=request.request_id) for request, each in pairs]


@pytest.mark.parametrize(
    ("engine", "slots", "cause", "words"),
    [
        (_LastColumn, 1, Cause.PADDING, "at the last of up to 5 pads"),  # its batch has them all
        (_ZerosInFront, 4, Cause.PADDING, "to the longest of a step, are attended"),
        (_Exchanged, 4, Cause.ROUTING, "it was given the answer to 'r1' (request 'r0')"),
    ],
)
def test_what_shows_nothing_but_answers_is_named(
    lab: Laboratory, engine: type[_Plain], slots: int, cause: Cause, words: str
) -> None:
    trial = trial_of(lab, EngineSpec("plain", engine))
    found = diagnosed(trial, workload(cap=3, max_num_seqs=slots))
    assert (found.cause, words in found.text) == (cause, True), found
    assert any("all requests of a call were in one batch" in each for each in found.evidence) == (
        slots == 1
    )


def test_it_ends_when_its_time_is_up(lab: Laboratory) -> None:
    trial = trial_of(lab, resolve_engine("fault:mask_ignores_sequence"))
    found = diagnosed(trial, workload(), seconds=0.0)
    assert (found.cause, found.text) == (Cause.UNKNOWN, "no cause was found within 0 s")


def test_a_cause_is_the_evidence_and_not_what_the_test_is_about(lab: Laboratory) -> None:
    trial = trial_of(lab, resolve_engine("fault:eos_unchecked_on_first_token"))
    stopped = Request("stopped", (3, 1, 4), 4, frozenset(range(256)))
    cancelled = Workload((Request("gone", (1, 2), 4), stopped), arrivals=(0, 0), aborts=(("gone", 1),))
    with pytest.raises(ConformanceFailure) as caught:
        check_run_with_aborts(trial, cancelled, trial.build(cancelled.config))
    assert caught.value.failure.promise is Promise.P3, "it is wrong with nothing aborted as well"
    found = diagnose(trial, caught.value.failure, 60.0)
    assert (found.cause, "the first token is not compared" in found.text) == (Cause.EOS, True), found


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("ragged", nullcontext()),
        ("fault:only_the_first_row_is_processed", pytest.raises(ConformanceFailure, match="P19")),
    ],
)
def test_an_aborted_request_is_held_to_what_it_drew(
    lab: Laboratory, name: str, outcome: AbstractContextManager[object]
) -> None:
    trial = trial_of(lab, resolve_engine(name))
    drawn = SamplingParams(temperature=1.0, allowed_token_ids=frozenset({5, 6}))
    requests = (Request("first", (3, 1, 4), 6), Request("gone", (1, 2), 6, sampling=drawn))
    cancelled = Workload(requests, arrivals=(0, 0), aborts=(("gone", 3),))
    with outcome:
        check_run_with_aborts(trial, cancelled, trial.build(cancelled.config))


def test_a_hang_says_which_request_waits(lab: Laboratory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batchproof.diagnosis.conduct.HANG_TIME_LIMIT_S", 0.5)
    trial = trial_of(lab, resolve_engine("fault:only_slot_waits_for_itself"))
    trial.lab.time_limit_s = 1.0
    found = diagnosed(trial, workload(max_num_seqs=1, max_num_batched_tokens=8))
    trial.lab.time_limit_s = 5.0
    assert found.cause is Cause.LIVENESS
    assert any("'r0', 'r2'" in line for line in found.evidence), found.evidence
    assert any("max_num_batched_tokens 2048" in line for line in found.evidence)


class _ReturnsNone(RaggedEngine):
    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        super().generate(requests)
        return None  # type: ignore[return-value]


class _GivesNaN(RaggedEngine):
    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        answers = super().generate(requests)
        return [
            replace(each, logits=torch.full((len(each.token_ids), 256), torch.nan)) for each in answers
        ]


class _RefusesAll(RaggedEngine):
    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        refused = FinishReason.ERROR
        return [Completion(each.request_id, (), refused, "out of service") for each in requests]


ALONE = "alone on a fresh engine: wrong as well"
ENDLESS = USUAL.with_requests(  # which no engine has to answer
    [replace(each, grammar=Grammar("regex", "a")) for each in USUAL.requests]
)


@pytest.mark.parametrize(
    ("engine", "asked", "says", "evidence"),
    [
        (_ReturnsNone, USUAL, "generate returned a NoneType", ()),
        (_GivesNaN, USUAL, "its logits hold NaN", (ALONE,)),
        (_Contrary, USUAL, "no mistake of the list gives this answer", (ALONE,)),
        (_Contrary, asking(*[BIASED] * 4), "no mistake of the list gives this answer", (ALONE,)),
        (_RefusesAll, USUAL, "error: out of service", ("alone, on a fresh engine: refused",)),
        (_RefusesAll, ENDLESS, "error: out of service", ("alone, on a fresh engine: refused",)),
    ],
)
def test_what_shows_no_mistake_gets_no_cause(
    lab: Laboratory, engine: type[RaggedEngine], asked: Workload, says: str, evidence: Sequence[str]
) -> None:
    """Of these, diagnoses once invented ORDER, POSITION and right answers."""
    found = diagnosed(trial_of(lab, EngineSpec(engine.__name__, engine)), asked)
    assert (found.cause, says in found.text) == (Cause.UNKNOWN, True), found
    lines = "\n".join(found.evidence)
    assert all(each in lines for each in evidence), found
    assert "right" not in lines


def test_a_broken_rule_of_the_trace_says_what_it_needs(lab: Laboratory) -> None:
    behind = [
        replace(each, request_id=f"b{each.request_id}", max_new_tokens=2) for each in USUAL.requests
    ]
    asked = PREEMPTED.with_requests([*PREEMPTED.requests, *behind])
    found = diagnosed(trial_of(lab, resolve_engine("fault:preempted_goes_to_the_back")), asked)
    assert "it does not occur with a pool that never runs full" in found.text, found


def test_lengths_may_stay_with_the_number_of_a_row() -> None:
    asked = Workload((Request("a", (1,), 1), Request("b", (1, 2, 3), 3)), EngineConfig(2))
    rows = zip(asked.requests, [(7,), (7, 8, 9)], strict=True)
    given = [Completion(each.request_id, row, FinishReason.LENGTH) for each, row in rows]
    table = cell_table_of([(asked, given, schedule_of_events(asked, plain_events(asked, given)))])
    assert of_row_numbers(table).tolist() == [0, 0, 0, 0, 1, 2], "behind `a`, which had one token"


def test_events_show_the_steps_of_an_engine_without_a_trace() -> None:
    asked = Workload((Request("a", (1, 2, 3), 4), Request("b", (5,), 1)), arrivals=(0, 1))
    told = [(0, "a", 7, None), (2, "a", 8, None), (2, "a", 9, None), (2, "b", 4, "length")]
    events = tuple((s, TokenEvent(n, t, e and FinishReason(e))) for s, n, t, e in told)
    first, second, third = schedule_of_events(asked, events)
    assert first.rows == (RowRecord("a", 0, 3, True),)
    assert second.rows == ()
    assert third.rows == (RowRecord("a", 3, 2, True, 1, 1), RowRecord("b", 0, 1, True))
    assert third.finished == ("b",)
