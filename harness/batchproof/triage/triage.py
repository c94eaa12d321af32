"""The rule of decision: corruption, rounding, a configuration, or nothing.

1. *Alone*: every probe in a call of its own. The configuration that explains these answers is that of
   the engine (`configurations`), and all answers are judged under it. Without one: CORRUPTION.
2. *In scenes*: beside others, in queues, in chunks, after preemption, on cached prefixes. A token that
   no rounding explains (`regret.Bounds`), or a cap or an EOS not kept, is CORRUPTION; unless the same
   request alone is answered so as well: then it joins the probes, and 1 is decided again.
3. *Rewritten*: near-ties beside neighbours, and again with other contents of these, all shapes kept.
   Rounding does not read the neighbours: a token that follows them, repeatably, by more than twice
   what the engine showed alone, is CORRUPTION.
4. Else, another configuration than asked for is CONFIG, any token that is not the best is ROUNDING,
   and none is CLEAN.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from batchproof.api import Request
from batchproof.oracle.oracle import Prompt, margins
from batchproof.records.triage import CLEAN, CONFIG, CORRUPTION, ROUNDING, Verdict
from batchproof.run.trial import Trial
from batchproof.triage.configurations import (
    AS_ASKED,
    Answered,
    Bounds,
    Configuration,
    Reading,
    drawn_configuration,
    explaining_configuration,
    readings,
)
from batchproof.triage.probes import (
    NoAnswerError,
    Probes,
    Scene,
    alone,
    rewritten_pairs,
    scene_words,
    seeded_scenes,
    served,
    smallest,
)
from batchproof.workload.workloads import Workload

LEVELS = 2.0  # factor over the regret of single requests that still counts as rounding
MOST_RESTARTS = 3  # after an answer that is as wrong alone
NUM_DRAWS = 400  # of one token, to tell draws from answers that go wrong

UNEXPLAINED = "requests are answered wrongly one at a time; no configuration that was tried explains it"
BY_EARLIER_CALLS = "an answer depends on earlier calls"
BY_OTHERS = "an answer depends on other requests, or on how they are scheduled"
BY_CONTENTS = "an answer depends on the contents of other requests"
UNANSWERED = "some requests get no answer"
DRAWN = "tokens are drawn at random, so nothing can be said of batches before that is off"


@dataclass(frozen=True)
class Decision:
    """A verdict, and the scene that shows it; None if there is nothing to show."""

    verdict: Verdict
    why: str
    lines: tuple[str, ...] = ()
    scene: Scene | None = None


class Triage:
    """Decides about one engine on one model, until `deadline`, a time of `time.monotonic`."""

    def __init__(
        self, trial: Trial, bounds: Bounds, probes: Probes, seed: int, deadline: float
    ) -> None:
        self._trial, self._bounds, self._probes = trial, bounds, probes
        self._seed, self._deadline = seed, deadline
        self._alone: list[Answered] = []
        self._token_s = 0.0  # seconds for a token of single requests
        self.configuration = AS_ASKED
        self.worst: dict[bool, tuple[Reading, Scene]] = {}  # True: of requests alone
        self.num_requests = self.num_tokens = self.num_scenes = 0

    def decide(self) -> Decision:
        """Returns the decision. Raises `NoAnswerError` if not even one request alone is answered, or if
        the time is up before any were served together."""
        probes = self._probes.alone
        served(self._trial, alone(probes[:1]))
        began = time.monotonic()
        try:
            self._alone = served(self._trial, alone(probes))
        except NoAnswerError as error:
            return self._unanswered(alone(probes), error)
        num_tokens = sum(len(each.completion.token_ids) for each in self._alone)
        self._token_s = (time.monotonic() - began) / max(1, num_tokens)
        for _ in range(1 + MOST_RESTARTS):
            if not self._is_explained():
                return self._unexplained()
            if self.configuration.is_drawn:
                first = alone([self._alone[0].request])
                return Decision(CONFIG, DRAWN, (self.configuration.name,), first)
            decision, is_as_wrong_alone = self._in_scenes()
            if not is_as_wrong_alone:
                return decision or self._rewritten() or self._remaining()
        return self._unexplained()

    def _is_explained(self) -> bool:
        found = explaining_configuration(self._trial.oracle, self._bounds, self._alone)
        found = found or self._drawn()
        if found is not None:
            self.configuration = found
            if not found.is_drawn:
                self._first_wrong(self._alone, alone([each.request for each in self._alone]))
        return found is not None

    def _drawn(self) -> Configuration | None:
        """The temperature that explains the first tokens of the prompt with the flattest logits."""
        plain = readings(self._trial.oracle, AS_ASKED, self._alone)
        if any(each.worst == float("inf") for each in plain):
            return None
        prompt = min((each.request.prompt_token_ids for each in plain), key=self._first_margin)
        asked = [Request(f"draw-{i}", prompt, 1) for i in range(NUM_DRAWS)]
        try:
            answers = served(self._trial, alone(asked))
        except NoAnswerError:
            return None
        counts = Counter(each.completion.token_ids for each in answers)
        return drawn_configuration(self._trial.oracle, prompt, counts)

    def _first_margin(self, prompt: Prompt) -> float:
        return float(margins(self._trial.oracle.score(prompt, (0,))))

    def _unexplained(self) -> Decision:
        wrong = [each.worst > self._bounds.coarse for each in self._readings(self._alone)]
        before = self._alone[: wrong.index(True) + 1]
        scene = self._smallest(alone([each.request for each in before]))
        is_wrong_alone = self._is_wrong(alone([before[-1].request]))
        why = UNEXPLAINED if is_wrong_alone else BY_EARLIER_CALLS
        share = f"{sum(wrong)} of {len(wrong)} requests are answered wrongly one at a time"
        return Decision(CORRUPTION, why, (*self._shown(scene), share), scene)

    def _in_scenes(self) -> tuple[Decision | None, bool]:
        """Serves scenes. Returns the decision, if any, and whether an answer was found that is as wrong
        alone, so that single requests must be explained again."""
        answers = {each.request.prompt_token_ids: each.completion.token_ids for each in self._alone}
        for scene in seeded_scenes(self._probes, answers, self._trial.capabilities, self._seed):
            if self._is_too_long(scene):
                continue
            try:
                wrong = self._first_wrong(served(self._trial, scene), scene)
            except NoAnswerError as error:
                return self._unanswered(scene, error), False
            if wrong is not None and self._is_as_wrong_alone(wrong):
                return None, True
            if wrong is not None:
                small = self._smallest(scene)
                return Decision(CORRUPTION, BY_OTHERS, self._shown(small), small), False
        return None, False

    def _is_too_long(self, scene: Scene) -> bool:
        """Whether less time is left than the scene takes at the speed of single requests."""
        num_tokens = sum(each.max_new_tokens for call in scene for each in call.requests)
        return time.monotonic() + num_tokens * self._token_s > self._deadline

    def _is_as_wrong_alone(self, wrong: Answered) -> bool:
        """Whether a fresh engine answers the request alone in the same way, which is then kept."""
        try:
            (fresh,) = served(self._trial, alone([wrong.request]))
        except NoAnswerError:
            return False
        if fresh.completion != wrong.completion:
            return False
        self._alone.append(fresh)
        return True

    def _unanswered(self, scene: Scene, error: NoAnswerError) -> Decision:
        small = self._smallest(scene)
        return Decision(CORRUPTION, UNANSWERED, (str(error), scene_words(small)), small)

    def _rewritten(self) -> Decision | None:
        bound = max(self._bounds.tight, LEVELS * self.worst[True][0].worst)
        for first, second in rewritten_pairs(self._probes, self._seed):
            if time.monotonic() > self._deadline:
                break
            try:
                sides = [served(self._trial, (each,)) for each in (first, second, first)]
            except NoAnswerError as error:
                return self._unanswered((first,), error)
            for old, new, old_again in zip(*sides, strict=True):
                is_kept = old.request == new.request and old.completion == old_again.completion
                if not is_kept or old.completion == new.completion:
                    continue
                one, other = self._readings([old, new])
                if max(one.worst, other.worst) > bound:
                    worst = (one, first) if one.worst > other.worst else (other, second)
                    return self._follows(*worst, bound)
        return None

    def _follows(self, reading: Reading, call: Workload, bound: float) -> Decision:
        unit = self._bounds.unit or 1.0
        lines = (
            self._words(reading),
            f"the engine showed {bound / unit / LEVELS:.3g} E alone; at equal shapes its token follows "
            "the contents of its neighbours",
            scene_words((call,)),
        )
        return Decision(CORRUPTION, BY_CONTENTS, lines, (call,))

    def _remaining(self) -> Decision:
        if False not in self.worst:
            raise NoAnswerError("the time limit is up before any requests were served together")
        reading, scene = max(self.worst.values(), key=lambda each: each[0].worst)
        is_near_tie = reading.worst > 0
        lines = (self._words(reading),) if is_near_tie else ()
        if self.configuration is not AS_ASKED:
            why = f"all answers are right under another configuration: {self.configuration.name}"
            as_asked = readings(self._trial.oracle, AS_ASKED, self._alone)
            farthest = max(as_asked, key=lambda each: each.worst).request
            return Decision(CONFIG, why, lines, alone([farthest]))
        if not is_near_tie:
            return Decision(CLEAN, "every token is the best one, alone and in every scene")
        precision = self._bounds.precision_of(reading.worst)
        why = f"every other token is a near-tie; {precision} rounds as much"
        single = alone([reading.request])
        return Decision(ROUNDING, why, lines, single if self._is_wrong(single, 0.0) else scene)

    def _readings(self, answered: Sequence[Answered]) -> list[Reading]:
        return readings(self._trial.oracle, self.configuration, answered)

    def _first_wrong(self, answered: Sequence[Answered], scene: Scene) -> Answered | None:
        """Counts the answers of a scene, keeps the largest regret that rounding explains, and returns
        the first answer that is wrong."""
        found = self._readings(answered)
        self.num_requests += len(found)
        self.num_tokens += sum(each.num_tokens for each in found)
        self.num_scenes += 1
        for each, reading in zip(answered, found, strict=True):
            if reading.worst > self._bounds.coarse:
                return each
        is_alone = all(len(call.requests) == 1 for call in scene)
        worst = max(found, key=lambda each: each.worst)
        if is_alone not in self.worst or worst.worst > self.worst[is_alone][0].worst:
            self.worst[is_alone] = worst, scene
        return None

    def _is_wrong(self, scene: Scene, bound: float | None = None) -> bool:
        """Whether an answer of the scene is wrong now, or missing."""
        limit = self._bounds.coarse if bound is None else bound
        try:
            return any(each.worst > limit for each in self._readings(served(self._trial, scene)))
        except NoAnswerError:
            return True

    def _smallest(self, scene: Scene) -> Scene:
        return smallest(scene, self._is_wrong, self._deadline)

    def _words(self, reading: Reading) -> str:
        request, unit = reading.request, self._bounds.unit
        size = f" ({reading.worst / unit:.3g} E)" if unit and reading.worst < float("inf") else ""
        shape = f"{len(request.prompt_token_ids)} prompt tokens"
        return f"request {request.request_id!r} ({shape}), {reading.words}{size}"

    def _shown(self, scene: Scene) -> tuple[str, ...]:
        """What is wrong in a scene, and whether the same request alone is right."""
        setting = scene_words(scene)
        try:
            found = self._readings(served(self._trial, scene))
        except NoAnswerError as error:
            return (str(error), setting)
        wrong = next((each for each in found if each.worst > self._bounds.coarse), None)
        if wrong is None:
            return ("it comes and goes", setting)
        is_wrong_alone = self._is_wrong(alone([wrong.request]))
        return (
            self._words(wrong),
            f"the same request alone is {'wrong as well' if is_wrong_alone else 'right'}",
            setting,
        )
