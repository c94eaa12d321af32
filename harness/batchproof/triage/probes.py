"""What an engine is asked: prompts of many shapes, near-ties of dialled margin, and *scenes*: calls in
which they meet neighbours, queues, chunks, preemption and cached prefixes."""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import TypeVar

from batchproof.api import Capability, EngineConfig, Request
from batchproof.checks.answers import order_findings
from batchproof.checks.broken import require
from batchproof.errors import BatchproofError, OracleError
from batchproof.findings.finding import Rule
from batchproof.findings.finding_text import headline
from batchproof.oracle.oracle import Oracle, Prompt, margins
from batchproof.records.texts import without_machine_paths
from batchproof.replay.judge import is_shown_again
from batchproof.replay.record import FailureOrigin, write
from batchproof.run.failures import ConformanceFailure, HangFailure
from batchproof.run.trial import Trial
from batchproof.triage.configurations import Answered
from batchproof.workload.workloads import Workload

Scene = tuple[Workload, ...]  # of one fresh engine, in order

LENGTHS = (1, 2, 3, 5, 8, 12, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 100, 127, 128, 130)
SHARED = (8, 16, 24, 32)  # tokens of prompts that begin alike
CAP = 8  # new tokens at most
LONG_CAP = 100  # of one answer
LONGEST_FILLED = 512  # positions of a model whose context is filled to the end

LADDER_LENGTHS = (5, 13, 22, 37)  # of the prompts among which near-ties are looked for
NUM_CANDIDATES = 40  # of each of these lengths
LARGE, FEW_CANDIDATES = 50_000_000, 4  # parameters from which on fewer are looked through
PER_RUNG = 2
FIRST_RUNG, NUM_RUNGS = 0.5, 18  # in E; each rung is twice the one before

# Of each scene: the numbers of requests in its calls, the longest prompt, and the slots.
SCENES = (
    ((16,), 1000, 3),
    ((5, 8), 40, 2),
    ((33,), 20, 17),
    ((720,), 20, 33),
    ((1, 2, 3), 300, 1),
    ((8, 16), 20, 8),
    ((16, 5), 1000, 4),
    ((33, 3), 40, 33),
    ((8,), 1000, 2),
    ((5, 5, 5), 40, 8),
)
NAMES = ("r{}", " r{}", "r{} ", "R{}")  # of requests: four at a time differ in a blank or a case
BLOCK_SIZES = (1, 2, 4, 8, 16)  # tokens
MOST_KEPT, KEPT_AT_ONCE = 16, 4  # near-ties, and those that meet as many neighbours in one call
LONGEST_SHRINK_S = 20.0
Part = TypeVar("Part")
ORIGIN = FailureOrigin("batchproof triage", "triage")


@dataclass(frozen=True)
class Probes:
    """`prompts` of many shapes. `ladder`: requests whose last token is a near-tie, by margin."""

    prompts: tuple[Prompt, ...]
    ladder: tuple[Request, ...]

    @property
    def alone(self) -> list[Request]:
        """What is asked first, one request at a time."""
        plain = [Request(f"plain-{i}", each, CAP) for i, each in enumerate(self.prompts)]
        longest = Request("long-answer", self.prompts[2], LONG_CAP)
        return [*plain, longest, *self.ladder]


def seeded_probes(oracle: Oracle, error_unit: float | None, seed: int) -> Probes:
    """Probes for a model; `error_unit` is E, None for a model without near-ties."""
    subject = oracle.subject
    rng = random.Random(seed)
    alphabet = [each for each in range(subject.vocab_size) if subject.has_answer((each,))]

    def prompt(length: int) -> Prompt:
        return tuple(rng.choices(alphabet, k=length))

    room = subject.context_len - CAP
    prompts = [prompt(each) for each in LENGTHS if each <= room]
    start = prompt(max(SHARED))
    alike = (start, start[::-1], (*start[16:], *start[:16]))  # a weak hash takes them for the same
    prompts += [(*start[:each], *prompt(9)) for each in SHARED if each + 9 <= room]
    prompts += [(*each, *prompt(5)) for each in alike if len(each) + 5 <= room]
    if subject.context_len <= LONGEST_FILLED:
        prompts.append(prompt(room))
    num = NUM_CANDIDATES if subject.model.num_parameters() < LARGE else FEW_CANDIDATES
    candidates = [prompt(each) for each in LADDER_LENGTHS for _ in range(num)]
    ladder = () if error_unit is None else _ladder(oracle, candidates, error_unit)
    return Probes(tuple(prompts), ladder)


def _ladder(oracle: Oracle, candidates: list[Prompt], error_unit: float) -> tuple[Request, ...]:
    """Up to `PER_RUNG` requests on each rung, the smallest margin first. An answer runs up to the
    near-tie; the reference proposes it, and float64 tells its margin."""
    answers = [(prompt, oracle.answer(prompt, CAP).token_ids) for prompt in candidates]
    found: list[tuple[float, Prompt, int]] = []
    for (prompt, _), score in zip(answers, oracle.score_all(answers), strict=True):
        found += [(float(each), prompt, step + 1) for step, each in enumerate(margins(score))]
    rungs: dict[int, list[Request]] = {}
    for margin, prompt, cap in sorted(found):
        rung = next((k for k in range(NUM_RUNGS) if margin < FIRST_RUNG * 2**k * error_unit), None)
        if rung is not None and len(rungs.setdefault(rung, [])) < PER_RUNG:
            place = len(rungs[rung])
            rungs[rung].append(Request(f"near-tie-{rung}-{place}", prompt, cap))
    return tuple(each for rung in sorted(rungs) for each in rungs[rung])


def seeded_scenes(
    probes: Probes,
    answers: Mapping[Prompt, Sequence[int]],
    capabilities: AbstractSet[Capability],
    seed: int,
) -> Iterator[Scene]:
    """Yields everything at once, and the scenes of the table under limits that all requests fit in.

    `answers` holds what the engine answers alone: of it, EOS ids are made that occur.
    """
    rng = random.Random(seed)
    everything = tuple(probes.alone)
    yield (Workload(everything, EngineConfig(max_num_seqs=8)),)
    yield (Workload(everything[::-1], EngineConfig(max_num_seqs=33)),)
    prompts = [*probes.prompts, *(each.prompt_token_ids for each in probes.ladder)]
    known = {prompt: tokens for prompt, tokens in answers.items() if tokens}
    for sizes, longest, slots in SCENES:
        some = [each for each in prompts if len(each) <= longest]
        calls = [
            tuple(_request(rng, NAMES[i % 4].format(i // 4), some, known) for i in range(size))
            for size in sizes
        ]
        config = _limits(rng, slots, [each for call in calls for each in call], capabilities)
        yield tuple(Workload(call, config) for call in calls)


def _request(
    rng: random.Random, name: str, prompts: Sequence[Prompt], answers: Mapping[Prompt, Sequence[int]]
) -> Request:
    prompt = rng.choice(prompts)
    eos: set[int] = set()
    if prompt in answers and rng.random() < 0.5:
        eos = {rng.choice(answers[prompt]), rng.choice(rng.choice([*answers.values()]))}
    return Request(name, prompt, rng.choice((CAP, rng.randint(1, CAP))), frozenset(eos))


def _limits(
    rng: random.Random, slots: int, requests: Sequence[Request], can: AbstractSet[Capability]
) -> EngineConfig:
    block, budget, pool = rng.choice(BLOCK_SIZES), 2048, None
    lengths = [len(each.prompt_token_ids) + each.max_new_tokens for each in requests]
    if Capability.CHUNKED_PREFILL in can and rng.random() < 0.5:
        budget = rng.choice((slots, slots + 1, slots + 5, max(slots, 16)))
    if Capability.PREEMPTION in can and rng.random() < 0.5:
        most = ceil(max(lengths) / block)
        pool = most + rng.randint(0, most)
    has_cache = Capability.PREFIX_CACHING in can and rng.random() < 0.5
    context = rng.choice((None, max(lengths)))  # which the longest then fills to its end
    return EngineConfig(slots, budget, block, pool, context, prefix_caching=has_cache)


def rewritten_pairs(probes: Probes, seed: int) -> Iterator[tuple[Workload, Workload]]:
    """Yields pairs of calls with the same near-ties in the same shapes, and other contents of all
    neighbours."""
    rng = random.Random(seed)
    alphabet = sorted({token for each in probes.prompts for token in each})
    kept = rng.sample(probes.ladder, min(MOST_KEPT, len(probes.ladder)))

    def among_others(some: Sequence[Request], lengths: Sequence[int]) -> Workload:
        requests = []
        for number, (request, length) in enumerate(zip(some, lengths, strict=True)):
            prompt = tuple(rng.choices(alphabet, k=length))
            requests += [Request(f"neighbour-{number}", prompt, CAP), request]
        return Workload(tuple(requests), EngineConfig(max_num_seqs=8))

    for start in range(0, len(kept), KEPT_AT_ONCE):
        some = kept[start : start + KEPT_AT_ONCE]
        lengths = [rng.randint(3, 40) for _ in some]
        yield among_others(some, lengths), among_others(some, lengths)


class NoAnswerError(BatchproofError):
    """Raised if an engine raises, hangs, or answers other requests than those it was asked."""


def served(trial: Trial, scene: Scene) -> list[Answered]:
    """All answers of one fresh engine to the calls, in order. Raises `NoAnswerError`."""
    found: list[Answered] = []
    try:
        with trial.reporting(scene[0], Rule.RAISED), trial.engine(scene[0].config) as engine:
            for call in scene:
                completions = trial.run(call, engine).completions
                with trial.reporting(call):
                    require(order_findings(call.requests, completions))
                found += map(Answered, call.requests, completions)
    except (ConformanceFailure, HangFailure) as error:
        raise NoAnswerError(without_machine_paths(headline(error.failure.finding))) from error
    return found


def alone(requests: Sequence[Request]) -> Scene:
    return tuple(Workload((each,), EngineConfig()) for each in requests)


def smallest(scene: Scene, is_wrong: Callable[[Scene], bool], deadline: float) -> Scene:
    """A scene of as few calls and requests as are found to show the same, within the time."""
    end = min(deadline, time.monotonic() + LONGEST_SHRINK_S)
    smaller = _smaller(scene)
    while (each := next(smaller, None)) is not None and time.monotonic() <= end:
        if is_wrong(each):
            scene, smaller = each, _smaller(each)
    return scene


def _smaller(scene: Scene) -> Iterator[Scene]:
    """Yields scenes with calls left out, then with ever fewer requests of a call."""
    yield from _without_a_stretch(scene)
    for place, call in enumerate(scene):
        for requests in _without_a_stretch(call.requests):
            yield (*scene[:place], replace(call, requests=requests), *scene[place + 1 :])


def _without_a_stretch(parts: tuple[Part, ...]) -> Iterator[tuple[Part, ...]]:
    """Yields what is left: without halves at first, without single parts at last."""
    size = len(parts) // 2
    while size:
        for start in range(0, len(parts), size):
            if rest := parts[:start] + parts[start + size :]:
                yield rest
        size //= 2


def scene_words(scene: Scene) -> str:
    config, sizes = scene[0].config, [len(call.requests) for call in scene]
    calls = f"{len(sizes)} calls of {sizes} requests" if len(sizes) > 1 else f"{sizes[0]} requests"
    return (
        f"{calls}; slots {config.max_num_seqs}, tokens a step {config.max_num_batched_tokens}, "
        f"block size {config.block_size}, blocks {config.num_blocks}, "
        f"prefix caching {config.prefix_caching}"
    )


def failure_file(trial: Trial, scene: Scene, directory: Path) -> str | None:
    """Judges the scene as the suite does, and writes what it finds; returns the file's name. None if
    the suite finds nothing: rounding of the model's own size is no failure."""
    judging = trial.renewed()
    try:
        with judging.engine(scene[0].config) as engine:
            for call in scene:
                judging.check(call, engine)
    except (ConformanceFailure, HangFailure) as error:
        is_shown = is_shown_again(judging, error.failure)
        return write(judging, error.failure, ORIGIN, directory, is_shown).name
    except OracleError:
        return None
    return None
