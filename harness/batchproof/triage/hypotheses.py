"""What may be true of an endpoint, and how likely its answers are if it is.

Rounding, precision and temperature act on a token in one way: noise of a size s on each logit makes a
token that is b behind the best one win with odds of about exp(-b / t). (With noise of Gumbel's
distribution that is exact, of scale t = s sqrt(3) / pi for margins that move by s: J. I. Yellott,
Journal of Mathematical Psychology 15, 1977. Its tails are heavier than those of a normal noise, so that
it does not understate what an honest endpoint flips.)

What differs is how answers to one prompt hang together; each is of one kind as a whole. Noise of a
precision is the same each time; a temperature draws anew; a replica of another precision is met by
chance; corruption follows neither margin nor prompt, and may need company.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from operator import attrgetter
from statistics import fmean

from numpy import logaddexp

from batchproof.records.probe_packs import NUM_RANKED, Probe, ProbePack, Step
from batchproof.records.triage import CLEAN, CONFIG, CORRUPT, MIXED, ROUNDING, Verdict

HONEST = 1.25  # sigma: how much noisier than the arithmetic that was simulated an honest engine may be
FLOOR = 1e-9  # chance of answers that no noise explains, of an endpoint that nothing is wrong with
JITTERS = (0.1, 0.5, 1.0)  # shares of answers to a prompt asked again that are noise of their own
SHARES = (1.0, 0.5, 0.125)  # of replicas
BEYOND = (4.0, 16.0)  # how much larger than that of any precision noise is that other prompts make
CORRUPTED = (3e-3, 0.01, 0.03, 0.1, 0.3, 1.0)  # shares of wrong answers
TEMPERATURES = (0.3, 0.7, 1.0)
SURE = 0.9  # that a token which a configuration makes the best is the one that is answered
MOST_BEYOND = 10.0  # times as many tokens as are ranked lie close enough to count
OTHER_MASS = 0.9  # of a wrong token, that is none of those that are ranked
ALONE, COMPANY = "alone", "in company"  # scenes: one request at a time, and any other
Left = tuple[int, int, str]  # step, place and what was said
Shares = tuple[float, ...]  # by place; the last is that of all tokens that have none


@dataclass(frozen=True)
class Seen:
    """How an answer leaves the path of its probe: at the first token that is not the best, by its place
    among those of the step, or their number if it has none: then `said` is what stands there. Place 0:
    it ends at this step, and all of it is right."""

    probe: int
    step: int
    place: int
    scene: str
    said: str = ""

    @property
    def left(self) -> Left:
        return self.step, self.place, self.said


@cache
def noisy(step: Step, scale: float) -> Shares:
    """Returns how often each place wins under noise of this scale, in sigma: Gumbel's, not that of a
    margin. The best of many logits lie ever denser, e times as many for each `spacing` (estimated as by
    B. M. Hill, Annals of Statistics 3, 1975): so do those behind the ranked ones, up to `MOST_BEYOND`
    times as many."""
    ranked = step.behind[:NUM_RANKED]
    weights = [math.exp(-each / scale) for each in step.behind]
    spacing = sum(ranked[-1] - each for each in ranked) / max(1, len(ranked) - 1)
    if not spacing:
        return _floored([*weights, 0.0])
    rate = 1 - spacing / scale  # at which they grow likelier, for each spacing
    reach = math.log(MOST_BEYOND)
    grown = math.expm1(rate * reach) / rate if rate else reach
    return _floored([*weights, len(ranked) * weights[len(ranked) - 1] * grown])


def _floored(weights: Sequence[float]) -> Shares:
    total, even = sum(weights), FLOOR / len(weights)
    return tuple((1 - FLOOR) * each / total + even for each in weights)


def scale_of(shift: float) -> float:
    """Returns the scale of noise that moves margins by this root mean square."""
    return shift * math.sqrt(3) / math.pi


@cache
def anything(step: Step) -> Shares:
    """Returns the shares of tokens that have nothing to do with the prompt."""
    listed = len(step.tokens)
    return (*[(1 - OTHER_MASS) / listed] * listed, OTHER_MASS)


@dataclass(frozen=True)
class Path:
    """The chances of one kind of answer to a probe: of each place at which it may leave the path, by
    step, and in place 0 of being right up to there."""

    chances: tuple[Shares, ...]

    @classmethod
    def of_tokens(cls, shares: Sequence[Shares]) -> Path:
        """Returns that of tokens with these shares where all before them are the best."""
        right, found = 1.0, []
        for each in shares:
            found.append(tuple(right * share for share in each))
            right *= each[0]
        return cls(tuple(found))

    @classmethod
    def going_wrong(cls, probe: Probe, usual: Path) -> Path:
        """Returns that of an answer that from one token on, most often an early one, has nothing to do
        with the prompt, and is a usual one before: so no answer that is right speaks for it."""
        total = sum(1 / i**2 for i in range(1, len(probe.steps) + 1))
        left, right, found = 1.0, 1.0, []
        for number, (step, chances) in enumerate(zip(probe.steps, usual.chances, strict=True), 1):
            here = 1 / number**2 / total
            left -= here
            wrong = (here * right * share for share in anything(step))
            found.append(tuple(left * a + b for a, b in zip(chances, wrong, strict=True)))
            right = chances[0]
        return cls(tuple(found))

    def chance(self, seen: Seen) -> float:
        return self.chances[seen.step][seen.place]

    def firsts(self, answers: Sequence[Seen]) -> Mapping[Left | None, float]:
        """Returns the chance of each answer that is met but for jitter: of those that were given, the
        longest of those that are right, and None for all others, which make the same difference.
        Tokens without a place share the chance of all of them."""
        wrong = {each.left: each for each in answers if each.place}
        shared = Counter((step, place) for step, place, _ in wrong)
        found: dict[Left | None, float] = {
            left: self.chance(each) / shared[left[:2]] for left, each in wrong.items()
        }
        whole = max((e for e in answers if not e.place), key=attrgetter("step"), default=None)
        if whole is not None:
            later = sum(p for left, p in found.items() if left is not None and left[0] > whole.step)
            found[whole.left] = self.chance(whole) - later
        return {**found, None: max(0.0, 1 - sum(found.values()))}

    def again(self, first: Left | None, now: Seen, jitter: float) -> float:
        """Returns the chance of an answer, where the answer to the prompt is known but for jitter."""
        is_kept = first is not None and (
            first == now.left or (not now.place and (first[0] > now.step or not first[1]))
        )
        return (1 - jitter) * is_kept + jitter * self.chance(now)


@dataclass(frozen=True)
class Hypothesis:
    """One state of an endpoint, beside honest noise: `share` of its answers are of another kind.

    `scale`: that kind is noise of this scale from the step `from_step` on. `configuration`: it is the
    answers under this configuration of the pack. Neither: it is any tokens, in `scene` alone if one is
    named. `is_drawn`: answers to one prompt are independent.
    """

    verdict: Verdict
    name: str
    share: float = 1.0
    scale: float | None = None
    from_step: int = 0
    configuration: int | None = None
    scene: str | None = None
    is_drawn: bool = False
    jitters: tuple[float, ...] = JITTERS

    @property
    def cause(self) -> tuple[Verdict, str]:
        """What it has in common with hypotheses of the same kind of wrong answers."""
        return self.verdict, f"{self.scene}" if self.verdict == CORRUPT else self.name

    def likelihood(self, usual: Path, other: Path, answers: Sequence[Seen]) -> float:
        """Returns the probability of all answers to a probe, by the paths of honest answers and of
        those of the other kind. Each is of one kind or the other, as one replica or another gives it.
        """
        if len(answers) == 1 or self.is_drawn:
            return math.prod(
                (1 - share) * usual.chance(each) + share * other.chance(each)
                for each, share in zip(answers, map(self._share_in, answers), strict=True)
            )
        return fmean(self._of_fixed(usual, other, answers, jitter) for jitter in self.jitters)

    @property
    def is_anything(self) -> bool:
        """Whether the other kind of answers is any tokens, new each time."""
        return self.scale is None and self.configuration is None

    def _of_fixed(self, usual: Path, other: Path, answers: Sequence[Seen], jitter: float) -> float:
        once: Mapping[Left | None, float] = {None: 1.0}
        firsts = once if self.share == 1.0 and not self.is_anything else usual.firsts(answers)
        news = once if self.is_anything else other.firsts(answers)
        total = 0.0
        for (first, prior), (new, chance) in product(firsts.items(), news.items()):
            each_of = prior * chance
            for each in answers:
                share = self._share_in(each)
                changed = other.chance(each) if self.is_anything else other.again(new, each, jitter)
                each_of *= (1 - share) * usual.again(first, each, jitter) + share * changed
            total += each_of
        return total

    def _share_in(self, seen: Seen) -> float:
        is_there = self.scene in (None, seen.scene) or (self.scene == COMPANY and seen.scene != ALONE)
        return self.share if is_there else 0.0

    def path(self, probe: Probe) -> Path:
        """Returns the chances of answers of the other kind, where they are not anything."""
        return Path.of_tokens([self._shares(probe, number) for number in range(len(probe.steps))])

    def _shares(self, probe: Probe, number: int) -> Shares:
        step = probe.steps[number]
        usual = noisy(step, HONEST_SCALE)
        if self.scale is not None:
            return noisy(step, self.scale) if number >= self.from_step else usual
        if self.configuration is None or not probe.under:
            return anything(step)
        first, place = probe.under[self.configuration]
        if first != number:
            return usual if first < 0 or number < first else anything(step)
        told = [float(each == place) for each in range(len(usual))]
        return tuple(SURE * a + (1 - SURE) * b for a, b in zip(told, anything(step), strict=True))


HONEST_SCALE = scale_of(HONEST)
HONESTLY = Hypothesis(CLEAN, "honest noise", scale=HONEST_SCALE)


def hypotheses(pack: ProbePack, scenes: Sequence[str]) -> Iterator[Hypothesis]:
    """Yields all that may be true of an endpoint that is asked this pack in these scenes, but that
    it is honest."""
    for precision in pack.precisions:
        scale = math.hypot(precision.scale, HONEST_SCALE)
        for share in SHARES:
            words = precision.name if share == 1 else f"{precision.name} in {share:.3g} of replicas"
            verdict = ROUNDING if share == 1 else MIXED
            yield Hypothesis(verdict, words, share, scale, precision.from_step)
    for number, name in enumerate(pack.configurations):
        yield Hypothesis(CONFIG, name, configuration=number)
    for each in TEMPERATURES:
        scale = each / pack.unit
        words = f"tokens are drawn: about temperature {each:g}"
        yield Hypothesis(CONFIG, words, scale=scale, is_drawn=True)
    coarsest = max((each.scale for each in pack.precisions), default=None)
    for factor in BEYOND if coarsest is not None else ():
        words = f"noise {factor:g} times that of the coarsest precision"
        wide = factor * (coarsest or 0.0)  # so answers stay what they are, unless they are drawn
        yield Hypothesis(CORRUPT, words, scale=wide, jitters=JITTERS[:1])
    for place in (None, COMPANY, *scenes):
        words = "in every scene" if place is None else f"in the scene {place!r}"
        words = "that are not asked for alone" if place == COMPANY else words
        for share in CORRUPTED:
            yield Hypothesis(CORRUPT, f"about {share:.1%} of the answers {words}", share, scene=place)


class Evidence:
    """The likelihood of all answers so far, under each hypothesis, against that of an honest endpoint.

    The mean of likelihood ratios, with weights that do not depend on the answers, exceeds 1 / alpha
    with a chance of at most alpha, whenever one looks (J. Ville, Etude critique de la notion de
    collectif, 1939). Verdicts have equal weights, and so have the causes of one, and the hypotheses of
    a cause.
    """

    def __init__(self, pack: ProbePack, known: Sequence[Hypothesis]) -> None:
        self.pack, self.known = pack, tuple(known)
        self.weights = _weights(self.known)
        self.seen: dict[int, list[Seen]] = {}  # by probe
        self.known_ratios: dict[object, tuple[float, ...]] = {}  # by answers to a probe
        self._paths: dict[int, tuple[Path, ...]] = {}
        self.ratios = [0.0] * len(self.known)  # logarithms

    def add(self, seen: Seen) -> None:
        """Takes one more answer into account."""
        answers = self.seen.setdefault(seen.probe, [])
        old = self.against(answers) if answers else (0.0,) * len(self.known)
        answers.append(seen)
        new = self.against(answers)
        self.ratios = [r - a + b for r, a, b in zip(self.ratios, old, new, strict=True)]

    def against(self, answers: Sequence[Seen]) -> tuple[float, ...]:
        """Returns the logarithm of the ratio of each hypothesis for all answers to one probe."""
        key = answers[0].probe, tuple(sorted((each.scene, each.left) for each in answers))
        if key not in self.known_ratios:
            self.known_ratios[key] = self._against(answers)
        return self.known_ratios[key]

    def _against(self, answers: Sequence[Seen]) -> tuple[float, ...]:
        number = answers[0].probe
        if number not in self._paths:
            probe = self.pack.probes[number]
            usual = HONESTLY.path(probe)
            wrong = Path.going_wrong(probe, usual)  # the same at any share and in any scene
            others = [wrong if each.is_anything else each.path(probe) for each in self.known]
            self._paths[number] = (usual, *others)
        usual, *others = self._paths[number]
        base = math.log(HONESTLY.likelihood(usual, usual, answers))
        return tuple(
            math.log(each.likelihood(usual, other, answers)) - base
            for each, other in zip(self.known, others, strict=True)
        )

    @property
    def against_honest(self) -> float:
        """The mean likelihood ratio, as a logarithm."""
        logs = [r + math.log(w) for r, w in zip(self.ratios, self.weights, strict=True)]
        return float(logaddexp.reduce(logs))

    def posteriors(self) -> Mapping[Hypothesis, float]:
        """Returns how much of the mean ratio each hypothesis has, the most first."""
        total = self.against_honest
        parts = {
            each: math.exp(ratio + math.log(weight) - total)
            for each, ratio, weight in zip(self.known, self.ratios, self.weights, strict=True)
        }
        return dict(sorted(parts.items(), key=lambda item: -item[1]))

    def excluded(self, beta: float) -> list[Hypothesis]:
        """Returns the hypotheses of which an honest endpoint would so be told with a chance of beta."""
        bound = math.log(beta)
        return [h for h, ratio in zip(self.known, self.ratios, strict=True) if ratio <= bound]


def _weights(known: Sequence[Hypothesis]) -> list[float]:
    causes = Counter(each.cause for each in known)
    verdicts = Counter(verdict for verdict, _ in causes)
    return [1 / len(verdicts) / verdicts[h.verdict] / causes[h.cause] for h in known]
