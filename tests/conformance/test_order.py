"""P4: one completion per request, in input order, whatever order they finish in."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchproof.api import EngineConfig, Request
from batchproof.generators.strategies import requests
from batchproof.run.trial import Trial
from batchproof.workload.workloads import Workload

pytestmark = [pytest.mark.promise(id="P4"), pytest.mark.one_model]

ODD_IDS = ["", " ", "0", "-1", "r 1", "ü", "a/b", "None", "'quoted'", "x" * 200]


@given(data=st.data())
def test_answers_come_in_input_order_when_the_first_finishes_last(
    trial: Trial, data: st.DataObject
) -> None:
    drawn = data.draw(requests(trial.oracle, min_size=3, with_eos=False))
    by_cap = sorted(drawn, key=lambda request: -request.max_new_tokens)
    max_num_seqs = data.draw(st.integers(1, 4), label="max_num_seqs")
    trial.check(Workload(tuple(by_cap), EngineConfig(max_num_seqs=max_num_seqs)))


@given(data=st.data())
def test_ids_are_kept_whatever_they_look_like(trial: Trial, data: st.DataObject) -> None:
    drawn = data.draw(requests(trial.oracle, min_size=2))
    ids = data.draw(st.permutations(ODD_IDS), label="ids")
    renamed = [replace(request, request_id=ids[i]) for i, request in enumerate(drawn)]
    trial.check(Workload(tuple(renamed), EngineConfig(max_num_seqs=2)))


@given(data=st.data())
def test_a_second_call_answers_its_own_requests(trial: Trial, data: st.DataObject) -> None:
    """Detects results that are indexed by a counter which continues across calls."""
    config = EngineConfig(max_num_seqs=2)
    with trial.engine(config) as engine:
        for _ in range(3):
            drawn = data.draw(requests(trial.oracle, min_size=1, max_size=4))
            trial.check(Workload(drawn, config), engine)


def test_no_requests_give_no_completions(trial: Trial) -> None:
    after = Workload((Request("after", trial.subject.encode("after the empty call"), 2),))
    trial.check_calls([Workload(()), after])
