"""Judges the answers of scenes under the configuration that an engine is found to have, and keeps what
the verdict rests on."""

from __future__ import annotations

from collections.abc import Sequence

from batchproof.triage import evidence
from batchproof.triage.asking import Asker, NoAnswerError, alone
from batchproof.triage.configurations import AS_ASKED, Answered
from batchproof.triage.noise import Noise
from batchproof.triage.scenes import Scene
from batchproof.triage.scoring import Reading, Scorer


class Judging:
    """Reads answers, counts them, and remembers the largest regrets that rounding explains."""

    def __init__(self, asker: Asker, scorer: Scorer, noise: Noise, shrinks_until: float) -> None:
        self.asker = asker
        self.configuration = AS_ASKED
        self.worst: dict[bool, tuple[Reading, Scene]] = {}  # True: of requests alone
        self.num_requests = self.num_tokens = self.num_scenes = 0
        self._scorer, self._noise, self._shrinks_until = scorer, noise, shrinks_until

    def readings(self, answered: Sequence[Answered]) -> list[Reading]:
        return self._scorer.readings(self.configuration, answered)

    def first_wrong(self, answered: Sequence[Answered], scene: Scene) -> Answered | None:
        """Counts the answers of a scene, and returns the first that is wrong."""
        readings = self.readings(answered)
        self.num_requests += len(readings)
        self.num_tokens += sum(len(each.regrets) for each in readings)
        self.num_scenes += 1
        for each, reading in zip(answered, readings, strict=True):
            if reading.worst > self._noise.coarse:
                return each
        is_alone = all(len(call.requests) == 1 for call in scene)
        worst = max(readings, key=lambda each: each.worst)
        if is_alone not in self.worst or worst.worst > self.worst[is_alone][0].worst:
            self.worst[is_alone] = worst, scene
        return None

    def is_wrong(self, scene: Scene, bound: float | None = None) -> bool:
        """Returns whether an answer of the scene is wrong now, or missing."""
        limit = self._noise.coarse if bound is None else bound
        try:
            return any(each.worst > limit for each in self.readings(self.asker.answers(scene)))
        except NoAnswerError:
            return True

    def smallest(self, scene: Scene) -> Scene:
        """Returns the smallest scene that is found to be wrong as well."""
        return evidence.smallest(scene, self.is_wrong, self._shrinks_until)

    def shown(self, scene: Scene) -> tuple[str, ...]:
        """Returns what is wrong in a scene, and whether the same request alone is right."""
        setting = evidence.setting_words(scene)
        bound = self._noise.coarse
        try:
            found = self.readings(self.asker.answers(scene))
        except NoAnswerError as error:
            return (str(error), setting)
        wrong = next((each for each in found if each.worst > bound), None)
        if wrong is None:
            return ("it comes and goes", setting)
        is_wrong_alone = self.is_wrong(alone([wrong.request]))
        return (
            evidence.words(wrong, bound, self._noise.unit),
            f"the same request alone is {'wrong as well' if is_wrong_alone else 'right'}",
            setting,
        )
