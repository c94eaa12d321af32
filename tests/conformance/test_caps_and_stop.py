"""P2 and P3: how long an answer is, and why it ended."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchproof.api import Capability, EngineConfig, Request
from batchproof.generators.strategies import asking, prompts, requests, workloads
from batchproof.requirements.promises import Promise
from batchproof.run.relations import require_same_bits
from batchproof.run.trial import Trial
from batchproof.workload.workloads import Workload, cut

pytestmark = pytest.mark.one_model


@pytest.mark.promise(id="P2")
@given(data=st.data())
def test_every_request_gets_exactly_its_own_cap(trial: Trial, data: st.DataObject) -> None:
    workload = data.draw(workloads(trial, min_requests=3, with_eos=False))
    trial.check(workload)


@pytest.mark.promise(id="P2")
@given(data=st.data())
def test_a_smaller_cap_gives_a_prefix_of_the_answer(trial: Trial, data: st.DataObject) -> None:
    workload = data.draw(workloads(trial, with_eos=False))
    # No chunks and no preemption: then the first k steps have the same shapes in both runs.
    workload = workload.with_config(max_num_batched_tokens=2048, num_blocks=None, max_model_len=None)
    chosen = data.draw(st.integers(0, len(workload.requests) - 1), label="request with the larger cap")
    longer = list(workload.requests)
    longer[chosen] = replace(longer[chosen], max_new_tokens=longer[chosen].max_new_tokens + 3)
    short = trial.run(workload).completions[chosen]
    long = trial.run(workload.with_requests(longer)).completions[chosen]
    prefix = cut(long, workload.requests[chosen].max_new_tokens)
    with trial.reporting(workload):
        # Who may be served first where it likes may go by caps.
        is_alike = Capability.SCHEDULING in trial.capabilities
        relation = "when its cap is 3 larger"
        require_same_bits(trial, Promise.P2, relation, [short], [prefix], is_alike)


@pytest.mark.promise(id="P3")
@given(data=st.data())
def test_the_first_eos_ends_each_request_alone(trial: Trial, data: st.DataObject) -> None:
    """Lets rows stop at different steps: most requests have an EOS among their own right tokens, some
    have several ids, some none."""
    drawn = data.draw(requests(trial.oracle, min_size=3, with_eos=False))
    wanted = []
    for request in drawn:
        answer = trial.oracle.right_tokens(request.prompt_token_ids, request.max_new_tokens)
        steps = st.sets(st.integers(0, len(answer) - 1), max_size=2)
        chosen = data.draw(steps, label="steps of an EOS")
        wanted.append(replace(request, eos_token_ids=frozenset(answer[step] for step in chosen)))
    max_num_seqs = data.draw(st.integers(1, 4), label="max_num_seqs")
    trial.check(Workload(tuple(wanted), EngineConfig(max_num_seqs=max_num_seqs)))


@pytest.mark.promise(id="P3")
@given(data=st.data())
def test_rows_that_leave_take_their_eos_ids_along(trial: Trial, data: st.DataObject) -> None:
    """Lets rows without an EOS leave a full batch early, in front of rows that stop late by their
    own; so per-row lists that are not shortened in the right place slip."""
    count = data.draw(st.integers(2, 4), label="rows that stop late")
    num_early = data.draw(st.integers(1, 2), label="rows that leave early")
    quick = data.draw(asking(trial.oracle, "quick", range(1, num_early + 1), st.integers(1, 12)))
    late = []
    for index in range(count):
        prompt = data.draw(prompts(trial.subject, st.integers(1, 12)))
        answer = trial.oracle.right_tokens(prompt, 9)
        eos = frozenset({answer[data.draw(st.integers(3, 7), label="step of the EOS")]})
        late.append(Request(f"late-{index}", prompt, 9, eos))
    rows = data.draw(st.permutations([*quick, *late]), label="order")
    trial.check(Workload(tuple(rows), EngineConfig(max_num_seqs=len(rows))))
    trial.check(Workload((*quick, *late), EngineConfig(max_num_seqs=len(rows))))


@pytest.mark.promise(id="P3")
@given(data=st.data())
def test_an_eos_in_the_prompt_stops_nothing(trial: Trial, data: st.DataObject) -> None:
    prompt = data.draw(prompts(trial.subject, st.integers(2, 24)))
    answer = trial.oracle.right_tokens(prompt, 6)
    only_in_prompt = {*prompt} - {*answer} | {-1, trial.subject.vocab_size}  # these two are no tokens
    neighbour = Request("neighbour", prompt[:1], 3, frozenset(prompt[:1]))
    trial.check(Workload((Request("r0", prompt, 6, frozenset(only_in_prompt)), neighbour)))


@pytest.mark.promise(id="P3")
@given(data=st.data())
def test_an_eos_exactly_at_the_cap_is_a_stop(trial: Trial, data: st.DataObject) -> None:
    wanted = []
    for request in data.draw(requests(trial.oracle, min_size=2, with_eos=False)):
        answer = trial.oracle.right_tokens(request.prompt_token_ids, request.max_new_tokens)
        wanted.append(replace(request, eos_token_ids=frozenset({answer[-1]})))
    trial.check(Workload(tuple(wanted), EngineConfig(max_num_seqs=2)))
