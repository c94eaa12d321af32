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
from dataclasses import dataclass

from batchproof.api import Request
from batchproof.records.triage import CLEAN, CONFIG, CORRUPTION, ROUNDING, Verdict
from batchproof.triage import evidence
from batchproof.triage.asking import NoAnswerError, alone
from batchproof.triage.configurations import AS_ASKED, Answered
from batchproof.triage.explaining import explaining
from batchproof.triage.judging import Judging
from batchproof.triage.noise import Noise
from batchproof.triage.probes import Probes
from batchproof.triage.scenes import Scene, rewritten, scenes
from batchproof.triage.scoring import Reading, Scorer
from batchproof.workload.workloads import Workload

LEVELS = 2.0  # times what an engine showed alone is still rounding
MOST_RESTARTS = 3  # after an answer that is as wrong alone

UNEXPLAINED = "requests are answered wrongly one at a time; no configuration that was tried explains it"
BY_EARLIER_CALLS = "an answer depends on earlier calls"
BY_OTHERS = "an answer depends on other requests, or on how they are scheduled"
BY_CONTENTS = "an answer depends on the contents of other requests"
UNANSWERED = "some requests get no answer"
DRAWN = "tokens are drawn at random, so nothing can be said of batches before that is off"


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

    def __init__(self, judging: Judging, known: Known, deadline: float) -> None:
        self._judging, self._known, self._deadline = judging, known, deadline
        self._asker = judging.asker
        self._alone: list[Answered] = []
        self._token_s = 0.0  # seconds for a token of single requests

    def decide(self) -> Decision:
        """Returns the decision. Raises `NoAnswerError` if not even one request alone is answered, or if
        the time is up before any were served together."""
        probes = self._known.probes.alone
        self._asker.answers(alone(probes[:1]))
        began = time.monotonic()
        try:
            self._alone = self._asker.answers(alone(probes))
        except NoAnswerError as error:
            return self._unanswered(alone(probes), error)
        num_tokens = sum(len(each.completion.token_ids) for each in self._alone)
        self._token_s = (time.monotonic() - began) / max(1, num_tokens)
        for _ in range(1 + MOST_RESTARTS):
            if not self._is_explained():
                return self._unexplained()
            decision, is_as_wrong_alone = self._in_scenes()
            if not is_as_wrong_alone:
                return decision or self._rewritten() or self._remaining()
        return self._unexplained()

    def _is_explained(self) -> bool:
        """Finds the configuration that explains the answers to single requests."""
        found = explaining(self._known.scorer, self._known.noise, self._alone)
        if found is not None:
            self._judging.configuration = found
            if not found.is_drawn:
                self._judging.first_wrong(self._alone, alone([each.request for each in self._alone]))
        return found is not None

    def _unexplained(self) -> Decision:
        """Returns the decision about single requests that nothing explains."""
        readings = self._judging.readings(self._alone)
        wrong = [each.worst > self._known.noise.coarse for each in readings]
        before = self._alone[: wrong.index(True) + 1]
        scene = self._judging.smallest(alone([each.request for each in before]))
        is_wrong_alone = self._judging.is_wrong(alone([before[-1].request]))
        why = UNEXPLAINED if is_wrong_alone else BY_EARLIER_CALLS
        share = f"{sum(wrong)} of {len(wrong)} requests are answered wrongly one at a time"
        return Decision(CORRUPTION, why, (*self._judging.shown(scene), share), scene)

    def _in_scenes(self) -> tuple[Decision | None, bool]:
        """Serves scenes. Returns the decision, if any, and whether an answer was found that is as wrong
        alone, so that single requests must be explained anew."""
        configuration = self._judging.configuration
        if configuration.is_drawn:
            first = alone([self._alone[0].request])
            return Decision(CONFIG, DRAWN, (configuration.name,), first), False
        answers = {each.request.prompt_token_ids: each.completion.token_ids for each in self._alone}
        known, can = self._known, self._asker.capabilities
        for scene in scenes(known.probes, answers, can, known.seed):
            if self._is_too_long(scene):
                continue
            try:
                wrong = self._judging.first_wrong(self._asker.answers(scene), scene)
            except NoAnswerError as error:
                return self._unanswered(scene, error), False
            if wrong is not None and self._is_as_wrong_alone(wrong):
                return None, True
            if wrong is not None:
                small = self._judging.smallest(scene)
                shown = self._judging.shown(small)
                return Decision(CORRUPTION, BY_OTHERS, shown, small), False
        return None, False

    def _is_too_long(self, scene: Scene) -> bool:
        """Returns whether less time is left than the scene takes at the speed of single requests."""
        num_tokens = sum(each.max_new_tokens for call in scene for each in call.requests)
        return time.monotonic() + num_tokens * self._token_s > self._deadline

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

    def _unanswered(self, scene: Scene, error: NoAnswerError) -> Decision:
        small = self._judging.smallest(scene)
        lines = (str(error), evidence.setting_words(small))
        return Decision(CORRUPTION, UNANSWERED, lines, small)

    def _rewritten(self) -> Decision | None:
        """Compares near-ties beside other neighbours of the same shapes."""
        shown = self._judging.worst[True][0].worst
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
                one, other = self._judging.readings([old, new])
                if max(one.worst, other.worst) > bound:
                    worst = (one, first) if one.worst > other.worst else (other, second)
                    return self._follows(*worst, bound)
        return None

    def _follows(self, reading: Reading, call: Workload, bound: float) -> Decision:
        unit = self._known.noise.unit or 1.0
        lines = (
            evidence.words(reading, bound, unit),
            f"the engine showed {bound / unit / LEVELS:.3g} E alone; at equal shapes its token follows "
            "the contents of its neighbours",
            evidence.setting_words((call,)),
        )
        return Decision(CORRUPTION, BY_CONTENTS, lines, (call,))

    def _remaining(self) -> Decision:
        """Returns the decision where nothing is corrupt."""
        judging, noise = self._judging, self._known.noise
        if False not in judging.worst:
            raise NoAnswerError("the time limit is up before any requests were served together")
        reading, scene = max(judging.worst.values(), key=lambda each: each[0].worst)
        is_near_tie = reading.worst > 0
        lines = (evidence.words(reading, 0.0, noise.unit),) if is_near_tie else ()
        if judging.configuration is not AS_ASKED:
            why = f"all answers are right under another configuration: {judging.configuration.name}"
            return Decision(CONFIG, why, lines, alone([self._most_telling()]))
        if not is_near_tie:
            return Decision(CLEAN, "every token is the best one, alone and in every scene")
        why = f"every other token is a near-tie; {noise.precision_of(reading.worst)} rounds as much"
        single = alone([reading.request])
        return Decision(ROUNDING, why, lines, single if judging.is_wrong(single, 0.0) else scene)

    def _most_telling(self) -> Request:
        """Returns the single request whose answer is farthest from what was asked."""
        readings = self._known.scorer.readings(AS_ASKED, self._alone)
        return max(readings, key=lambda each: each.worst).request
