"""What may be true of an endpoint, and how likely its answers are if it is.

Rounding, precision and temperature act on a token in one way: noise of a size s on each logit makes a
token that is b behind the best one win with odds of about exp(-b / t). (With noise of Gumbel's
distribution that is exact, of scale t = s sqrt(3) / pi for margins that move by s: J. I. Yellott,
Journal of Mathematical Psychology 15, 1977. Its tails are heavier than those of a normal noise, so that
it does not understate what an honest endpoint flips.)

What differs is how answers to one prompt hang together. Noise of a precision is the same each time;
a temperature draws anew; a replica of another precision is met by chance; corruption follows neither
margin nor prompt, and may need company.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

from batchproof.records.probe_packs import NUM_RANKED, Probe, ProbePack, Step
from batchproof.records.triage import CLEAN, CONFIG, CORRUPT, MIXED, ROUNDING, Verdict

HONEST = 1.25  # sigma: how much noisier than the arithmetic that was simulated an honest engine may be
FLOOR = 1e-9  # chance of answers that no noise explains, of an endpoint that nothing is wrong with
JITTER = 0.1  # share of answers to a prompt asked again that are noise of their own
SHARES = (1.0, 0.5, 0.125)  # of replicas
CORRUPTED = (3e-4, 3e-3, 0.03, 0.3, 1.0)  # shares of wrong tokens
TEMPERATURES = (0.3, 0.7, 1.0)
SURE = 0.9  # that a token which a configuration makes the best is the one that is answered
OTHER_MASS = 0.9  # of a wrong token, that is none of those that are ranked
NOT_ANSWERED = -1  # a place
ALONE, COMPANY = "alone", "in company"  # scenes: one request at a time, and any other
Shares = tuple[float, ...]  # by place; the last is that of all tokens that have none


@dataclass(frozen=True)
class Seen:
    """A token that was answered: its place among those of the step, or their number if it has none."""

    probe: int
    step: int
    place: int
    scene: str


@cache
def noisy(step: Step, scale: float) -> Shares:
    """Returns how often each place wins under noise of this scale, in sigma: Gumbel's, not that of a
    margin. Tokens behind the ranked ones are taken to lie as densely as those."""
    ranked = step.behind[:NUM_RANKED]
    weights = [math.exp(-each / scale) for each in step.behind]
    last = ranked[-1]
    beyond = (len(ranked) - 1) * scale / last * weights[len(ranked) - 1] if last else 0.0
    return _floored([*weights, beyond])


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

    def likelihood(self, probe: Probe, step: int, answers: Sequence[Seen]) -> float:
        """Returns the probability of the answers to one step of a probe, asked once or more."""
        here = probe.steps[step]
        usual = noisy(here, HONEST_SCALE)
        other = self._other(probe, step, usual)
        if len(answers) == 1:
            (only,) = answers
            share = self._share_in(only)
            return (1 - share) * usual[only.place] + share * other[only.place]
        if self.is_drawn:
            return math.prod(other[each.place] for each in answers)
        if self.scale is not None or self.configuration is not None:
            return self._of_two_kinds(usual, other, answers)
        total = 0.0
        for place, prior in _firsts(usual, answers).items():
            each_of = prior
            for each in answers:
                share = self._share_in(each)
                kept = _again(usual, place, each.place)
                each_of *= (1 - share) * kept + share * other[each.place]
            total += each_of
        return total

    def _share_in(self, seen: Seen) -> float:
        is_there = self.scene in (None, seen.scene) or (self.scene == COMPANY and seen.scene != ALONE)
        return self.share if is_there else 0.0

    def _of_two_kinds(self, usual: Shares, other: Shares, answers: Sequence[Seen]) -> float:
        """Each answer is of one replica or another, and that of each is always the same."""
        firsts = {NOT_ANSWERED: 1.0} if self.share == 1.0 else _firsts(usual, answers)
        total = 0.0
        for (place, prior), (new, chance) in product(firsts.items(), _firsts(other, answers).items()):
            each_of = prior * chance
            for each in answers:
                kept = _again(usual, place, each.place)
                changed = _again(other, new, each.place)
                each_of *= (1 - self.share) * kept + self.share * changed
            total += each_of
        return total

    def _other(self, probe: Probe, step: int, usual: Shares) -> Shares:
        here = probe.steps[step]
        if self.scale is not None:
            return noisy(here, self.scale) if step >= self.from_step else usual
        if self.configuration is not None and probe.under:
            first, place = probe.under[self.configuration]
            if first != step:
                return usual if first < 0 or step < first else anything(here)
            told = [float(each == place) for each in range(len(usual))]
            return tuple(SURE * a + (1 - SURE) * b for a, b in zip(told, anything(here), strict=True))
        return anything(here)


def _firsts(shares: Shares, answers: Sequence[Seen]) -> Mapping[int, float]:
    """Returns the chance of each answer that a prompt may have but for jitter: those that were given,
    and all others as one, since they make the same difference."""
    found = {each.place: shares[each.place] for each in answers}
    return {**found, NOT_ANSWERED: max(0.0, 1 - sum(found.values()))}


def _again(shares: Shares, first: int, now: int) -> float:
    """Returns the chance that a prompt is answered so, where its answer is known but for jitter."""
    return (1 - JITTER) * (first == now) + JITTER * shares[now]


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
    for place in (None, COMPANY, *scenes):
        words = "answers in every scene" if place is None else f"answers in the scene {place!r}"
        words = "answers that are not asked for alone" if place == COMPANY else words
        for share in CORRUPTED:
            yield Hypothesis(CORRUPT, f"{share:.2g} of the tokens of {words}", share, scene=place)


class Evidence:
    """The likelihood of all answers so far, under each hypothesis, against that of an honest endpoint.

    The mean of likelihood ratios, with weights that do not depend on the answers, exceeds 1 / alpha
    with a chance of at most alpha, whenever one looks (J. Ville, Etude critique de la notion de
    collectif, 1939). Verdicts have equal weights, and so have the hypotheses of one.
    """

    def __init__(self, pack: ProbePack, known: Sequence[Hypothesis]) -> None:
        self.pack, self.known = pack, tuple(known)
        of_verdict = {v: sum(h.verdict == v for h in known) for v in {h.verdict for h in known}}
        self._weights = [1 / len(of_verdict) / of_verdict[each.verdict] for each in known]
        self.seen: dict[tuple[int, int], list[Seen]] = {}
        self._logs: dict[tuple[int, int], tuple[float, ...]] = {}
        self.ratios = [0.0] * len(self.known)  # logarithms

    def add(self, seen: Seen) -> None:
        """Takes one more token into account."""
        key = seen.probe, seen.step
        answers = self.seen.setdefault(key, [])
        answers.append(seen)
        new = self.against(answers)
        old = self._logs.get(key, (0.0,) * len(new))
        self._logs[key] = new
        self.ratios = [r - a + b for r, a, b in zip(self.ratios, old, new, strict=True)]

    def against(self, answers: Sequence[Seen]) -> tuple[float, ...]:
        """Returns the logarithm of the ratio of each hypothesis for all answers to one step."""
        probe, step = self.pack.probes[answers[0].probe], answers[0].step
        base = math.log(HONESTLY.likelihood(probe, step, answers))
        return tuple(math.log(each.likelihood(probe, step, answers)) - base for each in self.known)

    @property
    def against_honest(self) -> float:
        """The mean likelihood ratio, as a logarithm."""
        return _log_sum([r + math.log(w) for r, w in zip(self.ratios, self._weights, strict=True)])

    def posteriors(self) -> Mapping[Hypothesis, float]:
        """Returns how much of the mean ratio each hypothesis has, the most first."""
        total = self.against_honest
        parts = {
            each: math.exp(ratio + math.log(weight) - total)
            for each, ratio, weight in zip(self.known, self.ratios, self._weights, strict=True)
        }
        return dict(sorted(parts.items(), key=lambda item: -item[1]))

    def excluded(self, beta: float) -> list[Hypothesis]:
        """Returns the hypotheses of which an honest endpoint would so be told with a chance of beta."""
        bound = math.log(beta)
        return [h for h, ratio in zip(self.known, self.ratios, strict=True) if ratio <= bound]


def _log_sum(logs: Sequence[float]) -> float:
    most = max(logs)
    return most + math.log(sum(math.exp(each - most) for each in logs))
