"""P16: the same call twice gives the same answer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchproof.generators.strategies import workloads
from batchproof.requirements.promises import Promise
from batchproof.run.relations import require_same_bits
from batchproof.run.trial import Trial

pytestmark = [pytest.mark.promise(id="P16"), pytest.mark.one_model]


@given(data=st.data())
def test_the_same_call_twice_gives_the_same_answer(trial: Trial, data: st.DataObject) -> None:
    workload = data.draw(workloads(trial))
    with trial.engine(workload.config) as engine:
        first = trial.run(workload, engine).completions
        second = trial.run(workload, engine).completions
    with trial.reporting(workload):
        require_same_bits(trial, Promise.P16, "when asked a second time", first, second)


@given(data=st.data())
def test_two_fresh_engines_give_the_same_answer(trial: Trial, data: st.DataObject) -> None:
    workload = data.draw(workloads(trial))
    first, second = (trial.run(workload).completions for _ in range(2))
    with trial.reporting(workload):
        require_same_bits(trial, Promise.P16, "on a second fresh engine", first, second)
