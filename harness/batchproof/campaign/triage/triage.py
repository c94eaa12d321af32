"""The rule of decision: corruption, rounding, a configuration, or nothing.

1. *Alone*: every probe in a call of its own. The configuration that explains these answers is that of
   the engine (`explaining`), and all answers are judged under it. Without one: CORRUPTION.
2. *In scenes*: beside others, in queues, in chunks, after preemption, on cached prefixes. A token that
   no rounding explains (`noise`), or a cap or an EOS not kept, is CORRUPTION; unless the same request
   alone is answered so as well: then it joins the probes, and 1 is decided anew.
3. *Rewritten*: near-ties beside neighbours, and again with other contents of these, all shapes kept.
   Rounding does not read the neighbours: a token that follows them, repeatably, by more than twice
   what the engine showed alone, is CORRUPTION.
4. Else, another configuration than asked for is CONFIG, any token that is not the best is ROUNDING,
   and none is CLEAN.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from batchproof.api import Request
from batchproof.campaign.triage import evidence
from batchproof.campaign.triage.asking import Answered, Asker, NoAnswerError, alone
from batchproof.campaign.triage.configurations import AS_ASKED, Configuration
from batchproof.campaign.triage.explaining import explaining
from batchproof.campaign.triage.noise import Noise
from batchproof.campaign.triage.probes import Probes
from batchproof.campaign.triage.scenes import Scene, rewritten, scenes
from batchproof.campaign.triage.scoring import Reading, Scorer
from batchproof.records.triage import ModelTriage, Verdict
from batchproof.workload.workloads import Workload

LEVELS = 2.0  # times what an engine showed alone is still rounding
MOST_RESTARTS = 3  # after an answer that is as wrong alone


@dataclass(frozen=True)
class Known:
    """What is known of a model before an engine is asked."""

    scorer: Scorer
    noise: Noise
    probes: Probes
    seed: int


@dataclass(frozen=True)
class Decision:
    """A verdict, and the scene that shows it; None if there is nothing to show."""

    verdict: Verdict
    why: str
    lines: tuple[str, ...] = ()
    scene: Scene | None = None


class Triage:
    """Decides about one engine on one model, until `deadline`, a time of `time.monotonic`."""

    def __init__(self, asker: Asker, known: Known, deadline: float) -> None:
        self._asker, self._known, self._deadline = asker, known, deadline
        self._configuration = AS_ASKED
        self._alone: list[Answered] = []
        self._worst: dict[bool, tuple[Reading, Scene]] = {}  # the largest regret; True: alone
        self._num_requests = self._num_tokens = self._num_scenes = 0

    def decide(self) -> Decision:
        """Returns the decision. Raises `NoAnswerError` if not even one request alone is answered."""
        probes = self._known.probes.alone
        self._asker.answers(alone(probes[:1]))
        try:
            self._alone = self._asker.answers(alone(probes))
        except NoAnswerError as error:
            return self._unanswered(alone(probes), error)
        for _ in range(MOST_RESTARTS):
            decision, is_decided = self._in_scenes() if self._is_explained() else self._unexplained()
            if is_decided:
                break
        return decision or self._rewritten() or self._remaining()

    def record(self, decision: Decision, seconds: float, failure: str | None) -> ModelTriage:
        """Returns the decision with what it rests on."""
        noise, subject = self._known.noise, self._known.scorer.subject
        regrets = [self._worst[key][0].worst if key in self._worst else 0.0 for key in (True, False)]
        is_measured = noise.unit is not None and self._worst and decision.verdict != Verdict.CORRUPTION
        in_units = [each / (noise.unit or 1.0) if is_measured else None for each in regrets]
        return ModelTriage(
            subject.name,
            subject.dtype_name,
            decision.verdict,
            decision.why,
            decision.lines,
            noise.unit,
            *in_units,
            noise.precision_of(max(regrets)) if is_measured else "",
            self._configuration.name,
            self._num_requests,
            self._num_tokens,
            self._num_scenes,
            seconds,
            failure,
        )

    def _is_explained(self) -> bool:
        """Finds the configuration that explains the answers to single requests."""
        asked = [each.request for each in self._alone]
        answers = [each.completion for each in self._alone]
        found = explaining(self._known.scorer, self._known.noise, asked, answers)
        if found is not None:
            self._configuration = found
            self._note(self._alone, alone(asked))
        return found is not None

    def _unexplained(self) -> tuple[Decision, bool]:
        """Returns the decision about single requests that nothing explains."""
        readings = self._readings(self._alone)
        wrong = [each for each in readings if each.worst > self._bound]
        place = readings.index(wrong[0])
        scene = self._smallest(alone([each.request for each in self._alone[: place + 1]]))
        why = "requests are answered wrongly one at a time, and no configuration that was tried explains it"
        if len(scene) > 1:
            why = "an answer depends on earlier calls"
        lines = (
            *self._shown(scene),
            f"{len(wrong)} of {len(readings)} requests are answered wrongly one at a time",
        )
        return Decision(Verdict.CORRUPTION, why, lines, scene), True

    def _in_scenes(self) -> tuple[Decision | None, bool]:
        """Serves scenes. Returns the decision, if any, and False if single requests must be explained
        anew."""
        if self._configuration.is_drawn:
            why = "tokens are drawn at random, so nothing can be said of batches before that is off"
            first = alone([self._alone[0].request])
            return Decision(Verdict.CONFIG, why, (self._configuration.name,), first), True
        answers = {each.request.prompt_token_ids: each.completion.token_ids for each in self._alone}
        known, can = self._known, self._asker.capabilities
        for scene in scenes(known.probes, answers, can, known.seed):
            if time.monotonic() > self._deadline:
                break
            try:
                wrong = self._note(self._asker.answers(scene), scene)
            except NoAnswerError as error:
                return self._unanswered(scene, error), True
            if wrong is not None and self._is_as_wrong_alone(wrong):
                return None, False
            if wrong is not None:
                return self._corrupted(scene), True
        return None, True

    def _is_as_wrong_alone(self, wrong: Answered) -> bool:
        """Returns whether a fresh engine answers the request alone in the same way, and notes that."""
        try:
            (fresh,) = self._asker.answers(alone([wrong.request]))
        except NoAnswerError:
            return False
        if fresh.completion != wrong.completion:
            return False
        self._alone.append(fresh)
        return True

    def _corrupted(self, scene: Scene) -> Decision:
        small = self._smallest(scene)
        why = "an answer depends on other requests, or on how they are scheduled"
        return Decision(Verdict.CORRUPTION, why, self._shown(small), small)

    def _unanswered(self, scene: Scene, error: NoAnswerError) -> Decision:
        small = self._smallest(scene)
        lines = (f"{error}", evidence.setting_words(small))
        return Decision(Verdict.CORRUPTION, "some requests get no answer", lines, small)

    def _rewritten(self) -> Decision | None:
        """Compares near-ties beside other neighbours of the same shapes."""
        shown = self._worst[True][0].worst if True in self._worst else 0.0
        bound = max(self._known.noise.tight, LEVELS * shown)
        for first, second in rewritten(self._known.probes, self._known.seed):
            if time.monotonic() > self._deadline:
                break
            try:
                before, after, again = (self._asker.answers((each,)) for each in (first, second, first))
            except NoAnswerError as error:
                return self._unanswered((first,), error)
            for old, new, old_again in zip(before, after, again, strict=True):
                is_kept = old.request == new.request and old.completion == old_again.completion
                if not is_kept or old.completion == new.completion:
                    continue
                worst = max(self._readings([old, new]), key=lambda each: each.worst)
                if worst.worst > bound:
                    return self._follows(
                        worst, bound, first if worst.completion == old.completion else second
                    )
        return None

    def _follows(self, reading: Reading, bound: float, call: Workload) -> Decision:
        unit = self._known.noise.unit or 1.0
        lines = (
            evidence.words(reading, bound, unit),
            f"the engine showed {bound / unit / LEVELS:.3g} E alone; at equal shapes its token follows the "
            "contents of its neighbours",
            evidence.setting_words((call,)),
        )
        why = "an answer depends on the contents of other requests"
        return Decision(Verdict.CORRUPTION, why, lines, (call,))

    def _remaining(self) -> Decision:
        """Returns the decision where nothing is corrupt."""
        (reading, scene), unit = (
            max(self._worst.values(), key=lambda e: e[0].worst),
            self._known.noise.unit,
        )
        is_near_tie = reading.worst > 0
        lines = (evidence.words(reading, 0.0, unit),) if is_near_tie else ()
        if self._configuration is not AS_ASKED:
            why = f"all answers are right under another configuration: {self._configuration.name}"
            first = max(self._known.scorer.readings(AS_ASKED, *self._pairs(self._alone)), key=_worst)
            return Decision(Verdict.CONFIG, why, lines, alone([first.request]))
        if not is_near_tie:
            return Decision(Verdict.CLEAN, "every token is the best one, alone and in every scene")
        precision = self._known.noise.precision_of(reading.worst)
        why = f"every other token is a near-tie, as rounding of {precision} explains"
        return Decision(Verdict.ROUNDING, why, lines, self._with_only(scene, reading.request))

    def _with_only(self, scene: Scene, request: Request) -> Scene:
        """Returns the call of a scene that holds the request; the request alone if that is enough."""
        single = alone([request])
        return single if self._is_wrong(single, 0.0) else scene

    @property
    def _bound(self) -> float:
        return self._known.noise.coarse

    @staticmethod
    def _pairs(answered: Sequence[Answered]) -> tuple[list, list]:
        return [each.request for each in answered], [each.completion for each in answered]

    def _readings(self, answered: Sequence[Answered]) -> list[Reading]:
        return self._known.scorer.readings(self._configuration, *self._pairs(answered))

    def _note(self, answered: Sequence[Answered], scene: Scene) -> Answered | None:
        """Counts the answers of a scene, and returns the first that is wrong."""
        readings = self._readings(answered)
        self._num_requests += len(readings)
        self._num_tokens += sum(len(each.regrets) for each in readings)
        self._num_scenes += 1
        wrong = next((i for i, each in enumerate(readings) if each.worst > self._bound), None)
        if wrong is not None:
            return answered[wrong]
        is_alone = all(len(call.requests) == 1 for call in scene)
        worst = max(readings, key=_worst)
        if is_alone not in self._worst or worst.worst > self._worst[is_alone][0].worst:
            self._worst[is_alone] = worst, scene
        return None

    def _is_wrong(self, scene: Scene, bound: float) -> bool:
        try:
            return any(each.worst > bound for each in self._readings(self._asker.answers(scene)))
        except NoAnswerError:
            return True

    def _smallest(self, scene: Scene) -> Scene:
        return evidence.smallest(scene, lambda each: self._is_wrong(each, self._bound), self._deadline)

    def _shown(self, scene: Scene) -> tuple[str, ...]:
        """Returns what is wrong in a scene, and whether the same request alone is right."""
        try:
            wrong = [
                each for each in self._readings(self._asker.answers(scene)) if each.worst > self._bound
            ]
        except NoAnswerError as error:
            return (str(error), evidence.setting_words(scene))
        if not wrong:
            return ("it comes and goes", evidence.setting_words(scene))
        is_wrong_alone = self._is_wrong(alone([wrong[0].request]), self._bound)
        return (
            evidence.words(wrong[0], self._bound, self._known.noise.unit),
            f"the same request alone is {'wrong as well' if is_wrong_alone else 'right'}",
            evidence.setting_words(scene),
        )


def _worst(reading: Reading) -> float:
    return reading.worst
