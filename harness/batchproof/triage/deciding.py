"""The rule of decision, which docs/triage.md explains: answers are weighed as they come
(`hypotheses.Evidence`), and asking ends as soon as it is known."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from batchproof.records.probe_packs import ProbePack
from batchproof.records.texts import counted
from batchproof.records.triage import CLEAN, CONFIG, CORRUPT, MIXED, UNDECIDED, EndpointTriage, Verdict
from batchproof.triage.asking import Asked, Door, NoAnswerError, Said, Scene, num_said, seen_in
from batchproof.triage.hypotheses import ALONE, COMPANY, HONEST_SCALE, Evidence, Seen, hypotheses, noisy
from batchproof.triage.scenes import alone, names_of, schedule

BELIEF = 0.95  # share of the likelihood at which a verdict is given
SHARP, NUM_MORE = 0.8, 40  # that of one cause among those of the verdict, or requests spent on it
LIKELY = 1e-3  # an answer with less than this chance of an honest endpoint is asked for again
ALIKE = 0.99  # of the likelihood of the best: settings between which the answers do not tell
NUM_AGAIN, TIMES_AGAIN = 6, 3  # such answers, and how often
NUM_SHOWN = 5  # of them
MOST_LOST = 0.1  # of the requests, without an answer
TOO_SLIGHT = "as an honest endpoint; some causes are too slight to be told in this budget"
HIDDEN = "answers are those to other prompts: a hidden prompt and corruption look the same"
HIDDEN_SHARE = 0.3  # of wrong answers alone, from which on the endpoint may read other prompts


@dataclass(frozen=True)
class Rule:
    """`alpha` and `beta` are the chances of a wrong verdict on an honest endpoint, and on another.
    `budget`: requests. `deadline`: a time of `time.monotonic`."""

    alpha: float = 0.001
    beta: float = 0.02
    budget: int = 300
    most_at_once: int = 32
    deadline: float = math.inf
    seed: int = 0


@dataclass
class Triage:
    """Decides about one endpoint that is asked through a door. `is_ours`: its settings are known, so
    that answers that nothing explains are corrupt; else it may read a prompt of its own before ours."""

    door: Door
    pack: ProbePack
    rule: Rule
    is_ours: bool
    note: Callable[[str], None] = lambda _: None
    num_requests: int = 0
    num_told: int | None = None  # of them, when it was known not to be honest
    wrong_scene: Scene | None = None  # the first with an answer that is not honest
    _alone: list[tuple[Asked, Said]] = field(default_factory=list)
    _lost: list[str] = field(default_factory=list)  # why requests got no answer
    _scenes: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        known = hypotheses(self.pack, names_of(self.door))
        # An engine that is built here has no replicas.
        known_here = [each for each in known if each.verdict != MIXED or not self.is_ours]
        self.evidence = Evidence(self.pack, known_here)

    def decide(self, engine: str) -> EndpointTriage:
        began = time.monotonic()
        verdict, why, belief = self._weighed()
        against = self.evidence.against_honest
        excluded = self.evidence.excluded(self.rule.beta)
        return EndpointTriage(
            engine=engine,
            model=self.pack.model,
            dtype=self.pack.dtype,
            verdict=verdict,
            why=why,
            evidence=tuple(self._lines()),
            chance=min(1.0, math.exp(-against)),
            belief=belief,
            excluded=tuple(each.name for each in excluded),
            open=tuple(each.name for each in self.evidence.known if each not in excluded),
            num_requests=self.num_requests,
            num_tokens=sum(e.step + 1 for group in self.evidence.seen.values() for e in group),
            scenes=tuple(self._scenes),
            seconds=round(time.monotonic() - began, 1),
        )

    def _weighed(self) -> tuple[Verdict, str, float]:
        most = min(self.rule.most_at_once, self.rule.budget)
        for scene in schedule(self.pack, self.door, most, self.rule.seed):
            try:
                self._ask(scene)
                if not self._is_honest() and self.num_told is None:
                    self.num_told = self.num_requests
                    probes = list(dict.fromkeys(each.probe for each in self._flipped()))[:NUM_AGAIN]
                    for _ in range(TIMES_AGAIN):
                        self._ask(alone(probes))
            except NoAnswerError as error:
                if self.is_ours and self.num_requests:
                    self.wrong_scene = self.wrong_scene or scene
                    return CORRUPT, f"requests {scene.name} get no answer: {error}", 1.0
                return UNDECIDED, f"requests get no answer: {error}", 0.0
            if self._is_honest():
                if self._is_settled():
                    return CLEAN, "nothing that was looked for is left possible", 0.0
                if self._is_spent():
                    return CLEAN, TOO_SLIGHT, 0.0
                continue
            verdict, name, belief, is_sharp = self._cause()
            is_sharp = is_sharp or self.num_requests >= (self.num_told or 0) + NUM_MORE
            if (belief >= BELIEF and is_sharp) or self._is_spent():
                return self._named(verdict, name, belief)
        raise AssertionError("a schedule has no end")

    def _ask(self, scene: Scene) -> None:
        scene = scene.within(self.rule.budget - self.num_requests)
        if not scene.calls:
            return
        said = self.door.ask(scene)
        self.num_requests += len(said)
        self._scenes[scene.name] += 1
        self._lost += [each.lost for each in said if each.lost]
        if scene.name == ALONE:
            pairs = zip((each for call in scene.calls for each in call), said, strict=True)
            self._alone += (pair for pair in pairs if not pair[1].lost)
        for each in seen_in(scene, said, self.pack):
            self.evidence.add(each)
            if self._chance(each) < LIKELY and self.wrong_scene is None:
                self.wrong_scene = scene
        if len(self._lost) > 1 + MOST_LOST * self.num_requests:
            raise NoAnswerError(f"{len(self._lost)} of {self.num_requests}: {self._lost[-1]}")
        odds = self.evidence.against_honest / math.log(10)
        self.note(
            f"{self.num_requests} requests, {scene.name}: 1e{odds:+.1f} to 1 that it is not honest"
        )

    def _is_honest(self) -> bool:
        return self.evidence.against_honest < -math.log(self.rule.alpha)

    def _is_settled(self) -> bool:
        return len(self.evidence.excluded(self.rule.beta)) == len(self.evidence.known)

    def _is_spent(self) -> bool:
        return self.num_requests >= self.rule.budget or time.monotonic() > self.rule.deadline

    def _chance(self, seen: Seen) -> float:
        step = self.pack.probes[seen.probe].steps[seen.step]
        return noisy(step, HONEST_SCALE)[seen.place]

    def _flipped(self) -> list[Seen]:
        """Returns the tokens that are not the best, the least likely of an honest endpoint first."""
        all_of = [each for group in self.evidence.seen.values() for each in group]
        return sorted((each for each in all_of if each.place), key=self._chance)

    def _unlikely(self) -> list[Seen]:
        return [each for each in self._flipped() if self._chance(each) < LIKELY]

    def _cause(self) -> tuple[Verdict, str, float, bool]:
        """Returns the likeliest verdict, its likeliest cause, the belief in the verdict, and whether
        that cause stands out."""
        posteriors = self.evidence.posteriors()
        verdicts, causes = Counter[Verdict](), Counter[tuple[Verdict, str]]()
        for each, share in posteriors.items():
            verdicts[each.verdict] += share  # type: ignore[assignment]
            causes[each.cause] += share  # type: ignore[assignment]
        ((verdict, belief),) = verdicts.most_common(1)
        cause = next(each for each, _ in causes.most_common() if each[0] == verdict)
        is_sharp = causes[cause] >= SHARP * belief
        if verdict == CORRUPT and not is_sharp:  # the few wrong answers do not tell scenes apart
            cause = CORRUPT, COMPANY
        best = next(each for each in posteriors if each.cause == cause)
        alike = [h.name for h, p in posteriors.items() if p >= ALIKE * posteriors[best]]
        names = list(dict.fromkeys([best.name, *alike])) if best.verdict == CONFIG else [best.name]
        return best.verdict, " or ".join(names), belief, is_sharp or len(names) > 1

    def _named(self, verdict: Verdict, name: str, belief: float) -> tuple[Verdict, str, float]:
        if (ends := self._own_end()) is not None:
            return CONFIG, ends, 1.0
        if verdict != CORRUPT:
            return verdict, name, belief
        if (more := self._more_tokens()) is not None:
            return CONFIG, more, 1.0
        knows_lengths = all(said.num_prompt is not None for _, said in self._alone)
        if not self.is_ours and not knows_lengths and self._share_wrong_alone() > HIDDEN_SHARE:
            return UNDECIDED, HIDDEN, belief
        return verdict, name, belief

    def _share_wrong_alone(self) -> float:
        asked = {each.probe for each, _ in self._alone}
        wrong = {each.probe for each in self._unlikely() if each.scene == ALONE}
        return len(wrong) / max(1, len(asked))

    def _more_tokens(self) -> str | None:
        """Says by how many tokens the prompts that the endpoint reads are longer, if always so."""
        more = {
            said.num_prompt - len(self.pack.probes[asked.probe].prompt)
            for asked, said in self._alone
            if said.num_prompt is not None
        }
        if len(more) != 1 or more == {0}:
            return None
        (num,) = more
        which = "more" if num > 0 else "fewer"
        return f"it reads {abs(num)} tokens {which} than each prompt has: a prompt or BOS of its own"

    def _own_end(self) -> str | None:
        """Says where all answers end before their cap, if they do at one length or one token."""
        given = [(self.pack.probes[asked.probe], said) for asked, said in self._alone]
        lengths, cut, ends = set[int](), list[int](), set[int]()
        for probe, said in given:
            if (num := num_said(said, probe)) is None:
                continue
            lengths.add(num)
            if num < len(probe.steps):
                cut.append(num)  # a text lacks the EOS that ends it, ids have it
                ends.add(said.token_ids[-1] if said.token_ids else probe.steps[num].tokens[0])
        if len(cut) < 2:
            return None
        if 0 < min(cut) == max(lengths):
            return f"every answer is cut at {cut[0]} tokens, a limit of the engine's own"
        if len(ends) == 1:
            return f"every answer also stops at token {min(ends)}, an EOS of the engine's own"
        return None

    def _lines(self) -> Iterator[str]:
        scenes: dict[str, list[Seen]] = {}
        for group in self.evidence.seen.values():
            for each in group:
                scenes.setdefault(each.scene, []).append(each)
        for name, seen in scenes.items():
            wrong = sum(self._chance(each) < LIKELY for each in seen)
            flips, num = sum(each.place > 0 for each in seen), sum(each.step + 1 for each in seen)
            yield f"{name}: of {num} tokens {flips} are not the best, {wrong} beyond honest noise"
        yield from list(dict.fromkeys(map(self._words, self._unlikely())))[:NUM_SHOWN]
        if self._lost:
            yield f"{counted(len(self._lost), 'request')} got no answer: {self._lost[-1]}"

    def _words(self, seen: Seen) -> str:
        probe = self.pack.probes[seen.probe]
        step = probe.steps[seen.step]
        where = (
            f"probe {seen.probe} ({len(probe.prompt)} prompt tokens), {seen.scene}, token {seen.step}"
        )
        if seen.place == len(step.tokens):
            return f"{where}: none of the {len(step.tokens)} tokens that may stand there"
        return (
            f"{where}: {step.tokens[seen.place]} is {step.behind[seen.place]:.3g} sigma behind the best"
        )
