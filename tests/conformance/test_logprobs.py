"""P18: logprobs are those of the model for the request's own tokens, ranked and aligned."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchproof.api import Capability, Request, SamplingParams
from batchproof.generators.choosing import mixed_workloads, with_logprobs
from batchproof.generators.strategies import around_powers, workloads
from batchproof.run.trial import Trial
from batchproof.workload.workloads import Workload

pytestmark = [pytest.mark.promise(id="P18"), pytest.mark.needs("logprobs")]


@pytest.mark.three_models
@given(data=st.data())
def test_logprobs_are_the_models_own(trial: Trial, data: st.DataObject) -> None:
    """Lets some requests of a batch ask for them, each for another number of likeliest tokens."""
    trial.check(data.draw(with_logprobs(trial, data.draw(workloads(trial, min_requests=2)))))


@pytest.mark.one_model
def test_as_many_of_the_likeliest_are_given_as_are_asked_for(trial: Trial) -> None:
    """Asks for numbers around each power of two, up to the whole vocabulary."""
    fields, vocab_size = trial.fields, trial.subject.vocab_size
    wanted = (
        Request(
            f"r{num}",
            (5, 6, num % vocab_size),
            2,
            sampling=SamplingParams(logprobs=num, prompt_logprobs=num).within(fields),
        )
        for num in (*around_powers(2, vocab_size - 1), vocab_size)
    )
    trial.check(Workload(tuple(wanted)))


PROMPT = pytest.param("prompt_logprobs", marks=pytest.mark.needs("prompt_logprobs"))


@pytest.mark.one_model
@pytest.mark.parametrize("field", ["logprobs", PROMPT])
def test_fewer_than_none_of_the_likeliest_are_refused(trial: Trial, field: str) -> None:
    """-2 if -1 has a meaning that the engine documents, such as all."""
    fewer = (SamplingParams(**{field: number}) for number in (-1, -2, -3))
    asked = next(each for each in fewer if not trial.fields.documented(each))
    bad = Request("bad", (5, 6), 4, sampling=asked)
    good = Request("good", (7, 8, 9), 4, sampling=SamplingParams(**{field: 0}))
    trial.check_answers(Workload((bad, good)), bad=(0,))


@pytest.mark.needs("logit_processing")
@pytest.mark.one_model
@given(data=st.data())
def test_logprobs_are_taken_before_the_parameters_change_the_logits(
    trial: Trial, data: st.DataObject
) -> None:
    """So does the temperature, where tokens are drawn."""
    are_drawn = Capability.SAMPLING in trial.capabilities and data.draw(st.booleans())
    trial.check(data.draw(with_logprobs(trial, data.draw(mixed_workloads(trial, are_drawn)))))
