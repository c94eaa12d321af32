"""P20: answers depend on batch, neighbours, order and schedule no more than the engine declares.

An engine that declares nothing is asked nothing. What is varied is in `batchproof.invariance.axes`.
"""

import pytest

from batchproof.invariance.measure import declared_grades, require_control, require_grade
from batchproof.run.trial import Trial

pytestmark = [pytest.mark.promise(id="P20")]


@pytest.mark.needs("invariance")
@pytest.mark.three_models
def test_no_answer_moves_more_than_the_engine_declares(trial: Trial) -> None:
    """Serves a request in two settings along each declared axis, after what must differ was seen to
    differ."""
    require_control(trial)
    for axis, grade in declared_grades(trial).items():
        require_grade(trial, axis, grade)
