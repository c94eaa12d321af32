"""Serves scenes, makes what was found small, and writes it for `batchproof replay`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from batchproof.api import EngineConfig, Request
from batchproof.checks.answers import check_order
from batchproof.errors import BatchproofError, OracleError
from batchproof.findings.finding import Rule
from batchproof.findings.finding_text import headline
from batchproof.records.texts import without_machine_paths
from batchproof.replay.write import FailureOrigin, write
from batchproof.run.failures import ConformanceFailure, HangFailure
from batchproof.run.trial import Trial
from batchproof.triage.configurations import Answered
from batchproof.triage.probes import Scene
from batchproof.workload.workloads import Workload

LONGEST_SHRINK_S = 20.0
Part = TypeVar("Part")
ORIGIN = FailureOrigin("batchproof triage", "triage")


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
                    check_order(call.requests, completions)
                found += map(Answered, call.requests, completions)
    except (ConformanceFailure, HangFailure) as error:
        raise NoAnswerError(without_machine_paths(headline(error.failure.finding))) from error
    return found


def alone(requests: Sequence[Request]) -> Scene:
    """The scene of one request after the other, each in a call of its own."""
    return tuple(Workload((each,), EngineConfig()) for each in requests)


def smallest(scene: Scene, is_wrong: Callable[[Scene], bool], deadline: float) -> Scene:
    """A scene of as few calls and requests as are found to show the same, within the time."""
    end = min(deadline, time.monotonic() + LONGEST_SHRINK_S)
    shrunk = True
    while shrunk:
        shrunk = False
        for smaller in _smaller(scene):
            if time.monotonic() > end:
                return scene
            if is_wrong(smaller):
                scene, shrunk = smaller, True
                break
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
    """A scene in one sentence."""
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
    judging = Trial(trial.lab, trial.spec, trial.oracle, trial.capabilities, trial.promise)
    try:
        with judging.engine(scene[0].config) as engine:
            for call in scene:
                judging.check(call, engine)
    except (ConformanceFailure, HangFailure) as error:
        return write(judging, error.failure, ORIGIN, directory).name
    except OracleError:
        return None
    return None
