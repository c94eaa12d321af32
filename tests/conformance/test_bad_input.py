"""P12: a bad request alone gets an error that names value and rule; its neighbours never notice."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchproof.api import Capability, EngineConfig, Request, SteppingEngine, TokenEvent
from batchproof.checks.answers import order_findings
from batchproof.checks.broken import broken, require
from batchproof.checks.refusals import refusal_findings, word_findings
from batchproof.findings.finding import Rule
from batchproof.generators.choosing import bad_parameters
from batchproof.generators.strategies import fewer_examples, short_requests, text_tokens, workloads
from batchproof.requirements.promises import Promise
from batchproof.run.relations import blame, require_same_bits
from batchproof.run.serving import assembled, steps
from batchproof.run.trial import Trial
from batchproof.workload.workloads import Workload

pytestmark = [pytest.mark.promise(id="P12"), pytest.mark.one_model]

BAD: dict[str, Callable[[Trial], Request]] = {
    "empty prompt": lambda _: Request("bad", (), 3),
    "token above the vocabulary": lambda trial: Request(
        "bad", (*range(12), trial.subject.vocab_size), 3
    ),
    "negative token": lambda _: Request("bad", (1, -1), 3),
    "cap of zero": lambda _: Request("bad", (1, 2), 0),
    "negative cap": lambda _: Request("bad", (1, 2), -5),
    "one token beyond the context": lambda trial: Request(
        "bad", (7,) * (trial.subject.context_len - 4), 5
    ),
}


def test_a_refusal_names_a_value_or_a_limit(trial: Trial) -> None:
    """Judges the words of all refusals, which the other tests do not; these judge that there is one."""
    bad = [replace(make(trial), request_id=kind) for kind, make in BAD.items()]
    in_chunks = Capability.CHUNKED_PREFILL in trial.capabilities
    budget = 8 if in_chunks else 2048  # the unknown token may lie behind the first chunk
    size = trial.block_sizes[-1]
    config = EngineConfig(block_size=size, num_blocks=6, max_num_batched_tokens=budget)
    if Capability.PREEMPTION in trial.capabilities:
        bad.append(Request("beyond the pool", (7,) * 6 * size, 2))
    if {Capability.LOGIT_PROCESSING, Capability.SAMPLING} <= trial.capabilities:
        parameters = bad_parameters(trial.subject.vocab_size).items()
        documented = trial.fields.documented
        bad += [
            Request(kind, (5, 6), 4, sampling=asked)
            for kind, asked in parameters
            if not documented(asked)
        ]
    # An id is cut out of the words, so it must not be what an engine may say: "empty prompt".
    bad = [replace(each, request_id=each.request_id.replace(" ", "_")) for each in bad]
    calls = [Workload((*bad, Request("twin", (3, 1), 2), Request("twin", (9, 2), 4)), config)]
    if Capability.STEPPING in trial.capabilities:
        calls.append(Workload(tuple(bad), config, arrivals=(0,) * len(bad)))
    for workload in calls:
        completions = trial.run(workload).completions
        with trial.reporting(workload):
            require(order_findings(workload.requests, completions))
            require(word_findings(workload, completions, trial.subject, trial.ledger))


@pytest.mark.parametrize("kind", BAD)
@fewer_examples(3)  # for each of the kinds
@given(data=st.data())
def test_a_bad_request_fails_alone(trial: Trial, kind: str, data: st.DataObject) -> None:
    bad = BAD[kind](trial)
    good = data.draw(workloads(trial, with_eos=False))
    place = data.draw(st.integers(0, len(good.requests)), label="place of the bad request")
    mixed = list(good.requests)
    mixed.insert(place, bad)
    without = trial.check(good).completions
    completions = list(trial.run(good.with_requests(mixed)).completions)
    with trial.reporting(good.with_requests(mixed)):
        if len(completions) != len(mixed):
            raise broken(Rule.COUNT, num_requests=len(mixed), num_completions=len(completions))
        require(refusal_findings(completions.pop(place), bad, trial.ledger))
        require_same_bits(trial, Promise.P12, f"beside a bad request ({kind})", without, completions)


def test_a_request_that_fills_the_context_exactly_is_served(trial: Trial) -> None:
    length = min(trial.subject.context_len, 512)
    config = EngineConfig(max_model_len=length)
    prompt = tuple(range(1, 33)) * (length // 32)
    whole = Request("whole", prompt[: length - 3], 3)
    beyond = Request("beyond", prompt[: length - 2], 3)
    # It goes on for long: a row that has ended and keeps its place must not run out of positions.
    with_neighbour = (whole, Request("neighbour", (5, 6), 9))
    trial.check(Workload(with_neighbour, config))
    trial.check_answers(Workload((beyond, *with_neighbour), config), bad=(0,))


def test_of_two_requests_with_one_id_the_later_is_refused(trial: Trial) -> None:
    """A bad request has no id that another could not have."""
    bad, later = Request("twin", (), 4), Request("twin", (9, 2), 4)
    good = (Request("twin", (3, 1, 4), 4), Request("other", (1, 5), 3))
    trial.check_answers(Workload((bad, *good, later)), bad=(0, 3))
    trial.check(Workload(good))


@pytest.mark.needs("stepping")
def test_an_id_that_is_live_is_refused_and_the_live_one_goes_on(trial: Trial) -> None:
    workload = Workload((Request("twin", (3, 1, 4), 6), Request("other", (1, 5), 5)))
    with trial.engine(workload.config) as engine, trial.reporting(workload):
        for step, events in enumerate(steps(engine, workload)):
            # A server may have sent all of it by now, if this process had to wait for a processor.
            if step <= 1 and not _has_ended(events, "twin"):
                _require_live(engine, "twin")
        trial.judge(workload.requests, assembled(workload, events))


@pytest.mark.needs("stepping")
@pytest.mark.one_model
def test_each_of_hundreds_of_live_ids_is_refused(trial: Trial) -> None:
    """Tries the newest first, so that a list which is too short shows its length."""
    workload = Workload(short_requests(trial.subject.vocab_size, 300, first=0), EngineConfig(2))
    with trial.engine(workload.config) as engine, trial.reporting(workload):
        for step, events in enumerate(steps(engine, workload)):
            for num_newer, each in enumerate(reversed(workload.requests)) if step == 0 else ():
                if not _has_ended(events, each.request_id):
                    _require_live(engine, each.request_id, num_newer)
        trial.judge(workload.requests, assembled(workload, events))


def _has_ended(events: Sequence[TokenEvent], request_id: str) -> bool:
    return any(event.request_id == request_id and event.finish_reason for event in events)


def _require_live(engine: SteppingEngine, request_id: str, num_newer: int = 0) -> None:
    try:
        engine.add(Request(request_id, (9, 2), 4))
    except ValueError as refusal:
        if request_id in str(refusal):
            return
        what = f"raised {refusal!r}, which does not name it"
    else:
        what = "raised no ValueError"
    what += f", but {num_newer} newer live ids were refused" if num_newer else ""
    raise broken(Rule.LIVE_ID, request_id, what=what)


@pytest.mark.needs("stepping")
@pytest.mark.parametrize("kind", BAD)
def test_a_bad_request_alone_on_an_idle_engine_is_told(trial: Trial, kind: str) -> None:
    bad = BAD[kind](trial)
    workload = Workload((bad,), arrivals=(0,))
    with trial.engine(workload.config) as engine:
        outcome = trial.run(workload, engine)
        with trial.reporting(workload):
            if not outcome.events:
                raise broken(Rule.REFUSAL_EVENT, bad.request_id, promise=Promise.P12, got="none")
            require(refusal_findings(outcome.completions[0], bad, trial.ledger))
        trial.check(Workload((Request("good", (1, 2), 2),), arrivals=(0,)), engine)


def check_id_again(trial: Trial, kind: str, arrivals: tuple[int, ...] | None) -> None:
    bad = BAD[kind](trial)
    good = Workload((Request(bad.request_id, (3, 1, 4), 3),), arrivals=arrivals)
    with trial.engine(good.config) as engine:
        trial.run(good.with_requests([bad]), engine)
        with blame(Promise.P12, "with the id of a refused request"):
            trial.check(good, engine)


@pytest.mark.parametrize("kind", BAD)
def test_the_id_of_a_refused_request_may_be_used_again(trial: Trial, kind: str) -> None:
    check_id_again(trial, kind, arrivals=None)


@pytest.mark.needs("stepping")
@pytest.mark.parametrize("kind", BAD)
def test_the_id_of_a_refused_request_may_be_added_again(trial: Trial, kind: str) -> None:
    check_id_again(trial, kind, arrivals=(0,))


@pytest.mark.needs("preemption")
@given(data=st.data())
def test_a_request_larger_than_the_pool_never_blocks_those_behind_it(
    trial: Trial, data: st.DataObject
) -> None:
    block_size = trial.block_sizes[-1]
    num_blocks = data.draw(st.integers(3, 6), label="num_blocks")
    capacity = block_size * num_blocks
    config = EngineConfig(block_size=block_size, num_blocks=num_blocks, max_num_seqs=2)
    # The last token is never fed: a prompt of capacity - 2 with cap 3 fits exactly.
    prompt = text_tokens(0, trial.subject.vocab_size)[: capacity - 2]
    fits = Request("fits", prompt, 3)
    too_large = Request("too-large", prompt, 4)
    small = [Request(f"small-{i}", (i + 1, 7), 2) for i in range(3)]
    trial.check_answers(Workload((too_large, *small[:1], fits, *small[1:]), config), bad=(0,))


@pytest.mark.needs("stepping")
def test_an_id_is_live_until_its_last_event(trial: Trial) -> None:
    """Covers the time when the last token is chosen, but not delivered yet."""
    workload = Workload((Request("twin", (3, 1, 4), 3), Request("other", (1, 5), 6)))
    with trial.engine(workload.config) as engine, trial.reporting(workload):
        for step, events in enumerate(steps(engine, workload)):
            if step and not _has_ended(events, "twin"):
                try:
                    engine.add(Request("twin", (9, 2), 4))
                except ValueError:
                    continue
                what = "raised no ValueError, but its last event is still to come"
                raise broken(Rule.LIVE_ID, "twin", what=what)
        trial.judge(workload.requests, assembled(workload, events))
