"""Does an engine leave alone what its rivals are measured with: model, torch's switches, cores?"""

from __future__ import annotations

from collections.abc import Sequence
from time import process_time, sleep
from typing import Any

from transformers import PreTrainedModel

from harness.bench.contender import Contender
from harness.models.catalogue import ModelUnderTest
from harness.trial import Laboratory
from harness.verdict import ConformanceFailure
from harness.world import require_same, world_of

LISTEN_S = 0.02


class Watch:
    """The model must be as it was loaded, and the switches as they were when the comparison began."""

    def __init__(self, lab: Laboratory, subject: ModelUnderTest) -> None:
        self._model = subject.model
        self._before = {**_shared(self._model), **lab.as_loaded(subject.name)}

    def require_no_harm_by(self, contender: Contender) -> None:
        """After it was built and has served once."""
        harm = self._harm()
        if harm is not None:
            contender.accuse(harm)

    def require_unharmed(self, contenders: Sequence[Contender]) -> None:
        """Figures of a damaged model mean nothing, whoever did it."""
        harm = self._harm()
        if harm is not None:
            for each in contenders:
                each.accuse(f"an engine of this comparison has done harm: {harm}", is_blameless=True)

    def _harm(self) -> str | None:
        try:
            require_same(self._before, _shared(self._model), "since it was loaded")
        except ConformanceFailure as failure:
            return f"{failure.promise} is broken: {failure.finding}"
        return None


def _shared(model: PreTrainedModel) -> dict[str, Any]:
    """All but the generators of random numbers, which nobody here depends on."""
    return {name: value for name, value in world_of(model).items() if "RNG" not in name}


def is_process_busy() -> bool:
    """Some thread computes while nobody has asked it to."""
    before = process_time()
    sleep(LISTEN_S)
    return process_time() - before > LISTEN_S / 2
