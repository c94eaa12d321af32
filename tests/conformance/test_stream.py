"""P14: the events of a request add up to its completion, each token once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchproof.api import Request
from batchproof.checks.broken import require
from batchproof.checks.refusals import event_findings
from batchproof.findings.finding import Rule, found
from batchproof.generators.strategies import workloads
from batchproof.run.trial import Trial
from batchproof.workload.workloads import Workload

pytestmark = [pytest.mark.promise(id="P14"), pytest.mark.needs("stepping"), pytest.mark.one_model]


@given(data=st.data())
def test_events_add_up_to_the_completion(trial: Trial, data: st.DataObject) -> None:
    workload = data.draw(workloads(trial, min_requests=2, with_arrivals=True))
    outcome = trial.check(workload)
    known = {request.request_id for request in workload.requests}
    strangers = [event.request_id for _, event in outcome.events if event.request_id not in known]
    with trial.reporting(workload):
        require(found(Rule.STRANGE_EVENT, each) for each in strangers)


@given(data=st.data())
def test_stepping_and_generate_give_the_same_answers(trial: Trial, data: st.DataObject) -> None:
    workload = data.draw(workloads(trial))
    trial.check(workload)
    stepped = Workload(workload.requests, workload.config, arrivals=(0,) * len(workload.requests))
    trial.check(stepped)


def test_a_refused_request_yields_one_error_event(trial: Trial) -> None:
    """One is refused before a step, and forty are before the next."""
    good = Request("good", (1, 2, 3), 3)
    bad = tuple(Request(f"bad-{n}", (), 3) for n in range(41))
    workload = Workload((good, *bad), arrivals=(0, 1, *[2] * 40))
    outcome = trial.run(workload)
    with trial.reporting(workload):
        for name in (each.request_id for each in bad):
            require(event_findings(outcome.events, name))
        trial.judge([good], outcome.completions[:1])


def test_an_abort_takes_nobody_elses_events_along(trial: Trial) -> None:
    """Requires events of both a refusal and an abort between the same two steps."""
    requests = (Request("runner", (1, 2, 3), 6), Request("victim", (4, 5), 6), Request("bad", (), 3))
    workload = Workload(requests, arrivals=(0, 0, 2), aborts=(("victim", 2),))
    outcome = trial.run(workload)
    with trial.reporting(workload):
        require(event_findings(outcome.events, "bad"))
        trial.judge(requests[:1], outcome.completions[:1])
