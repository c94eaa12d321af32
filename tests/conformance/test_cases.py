"""The curated cases of `cases/`: each remembers a bug that a real engine had."""

import pytest

from batchproof.cases.files import load_cases
from batchproof.cases.runner import run_case
from batchproof.cases.schema import Case
from batchproof.errors import CaseError
from batchproof.run.trial import Trial


def parameters() -> list[object]:
    """Returns each case with its promise and the capabilities it needs, for the `trial` fixture."""
    try:
        cases = load_cases()
    except CaseError as error:
        raise pytest.Collector.CollectError(str(error)) from None
    return [
        pytest.param(
            case,
            id=case.name,
            marks=[pytest.mark.promise(id=case.promise.id), pytest.mark.needs(*case.needs)],
        )
        for case in cases
    ]


@pytest.mark.three_models
@pytest.mark.parametrize("case", parameters())
def test_curated_case_keeps_parity(trial: Trial, case: Case) -> None:
    if case.models and trial.subject.name not in case.models:
        pytest.skip(f"only for {', '.join(case.models)}: {case.name}")
    run_case(trial, case)
