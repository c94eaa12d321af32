"""P21: an answer is that of the model with the request's own adapter, whatever its neighbours use.

Each adapter turns the model into another hash, from the first layer's keys on. So a layer that is left
out, a row that gets another's adapter, and a key computed under another show in the tokens.
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchproof.api import Capability, EngineConfig, Request
from batchproof.checks.happened import HITS, has_mixed_adapters
from batchproof.generators.adapting import adapted, loaded_adapters, same_prompts_by_turns
from batchproof.generators.strategies import crowded, fewer_examples, text_tokens, workloads
from batchproof.models.embedded import VARIANTS_MODEL
from batchproof.requirements.promises import Promise
from batchproof.run.relations import blame
from batchproof.run.trial import Trial
from batchproof.workload.workloads import Workload

pytestmark = [
    pytest.mark.promise(id="P21"),
    pytest.mark.needs("adapters"),
    pytest.mark.on_model(VARIANTS_MODEL),
]
OF_ADAPTERS = Promise.P21, "where requests name adapters"


@given(data=st.data())
def test_each_answer_is_that_of_its_own_adapter(trial: Trial, data: st.DataObject) -> None:
    workload = data.draw(adapted(trial.oracle, data.draw(workloads(trial, min_requests=2))))
    if Capability.SPECULATION in trial.capabilities and data.draw(st.booleans(), label="drafts"):
        workload = workload.with_config(num_speculative_tokens=3)
    with blame(*OF_ADAPTERS):
        trial.check(workload)


@pytest.mark.needs("stepping")
@given(data=st.data())
def test_requests_come_and_go_under_their_own_adapters(trial: Trial, data: st.DataObject) -> None:
    drawn = data.draw(workloads(trial, min_requests=3, with_arrivals=True))
    workload = data.draw(adapted(trial.oracle, drawn))
    with blame(*OF_ADAPTERS):
        trial.check(workload)


@pytest.mark.needs("preemption")
@given(data=st.data())
def test_a_preempted_request_goes_on_under_its_adapter(trial: Trial, data: st.DataObject) -> None:
    workload = data.draw(adapted(trial.oracle, data.draw(crowded(trial))))
    with blame(*OF_ADAPTERS):
        trial.check(workload)


@pytest.mark.shows("prefix_caching")
@pytest.mark.parametrize("loaded", ["elsewhere", "in place"])
@fewer_examples(2)
@given(data=st.data())
def test_a_prefix_is_taken_over_under_its_own_adapter_alone(
    trial: Trial, loaded: str, data: st.DataObject
) -> None:
    """Ends with other weights under a name that is known, from another folder or from the same."""
    calls = data.draw(same_prompts_by_turns(trial, loaded == "in place"))
    with blame(*OF_ADAPTERS):
        trial.check_calls(calls, HITS)


@pytest.mark.parametrize("max_loras", [8, 1, 3])
def test_every_adapter_is_served_beside_all_others(trial: Trial, max_loras: int) -> None:
    """Then again after each name has come to stand for another adapter."""
    count = trial.subject.num_variants
    names = [f"adapter-{number}" for number in range(1, count + 1)]
    text = text_tokens(1, trial.subject.vocab_size)
    wanted = tuple(
        Request(f"r{i}", text[i : i + 9], 3, adapter=name)
        for i, name in enumerate([*names, None, *names])
    )
    config = EngineConfig(max_num_seqs=count, max_loras=max_loras)
    calls = []
    for shift in (0, 1):
        numbers = [(number + shift) % count + 1 for number in range(count)]
        calls.append(Workload(wanted, config, adapters=tuple(zip(names, numbers, strict=True))))
    with blame(*OF_ADAPTERS):
        trace = trial.check_calls(calls)
    # Without that capability an engine may serve one at a time.
    if Capability.SCHEDULING in trial.capabilities and max_loras > 1:
        trial.must_show("step of several adapters", has_mixed_adapters(trace, calls[-1]))


@given(data=st.data())
def test_an_adapter_that_is_not_loaded_is_refused(trial: Trial, data: st.DataObject) -> None:
    """It was never loaded, and then it is no longer."""
    adapters = data.draw(loaded_adapters(trial.oracle))
    drawn = data.draw(workloads(trial, with_eos=False))
    good = replace(drawn, adapters=adapters).with_config(max_loras=len(adapters) + 1)
    place = data.draw(st.integers(0, len(good.requests)), label="place of the bad request")
    bad = replace(good.requests[0], request_id="bad", adapter="gone")  # within all limits
    mixed = list(good.requests)
    mixed.insert(place, bad)
    workload = good.with_requests(mixed)
    with trial.engine(good.config) as engine, blame(*OF_ADAPTERS):
        for _ in range(2):
            trial.check_answers(workload, (place,), engine)
            trial.check(replace(workload, adapters=(*adapters, ("gone", 1))), engine)
