"""Makes what was found small, says it in words, and writes it as a failure that can be replayed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from batchproof.errors import OracleError
from batchproof.replay.write import FailureOrigin, write
from batchproof.requirements.promises import Promise
from batchproof.run.failures import ConformanceFailure, HangFailure
from batchproof.run.trial import Trial
from batchproof.triage.asking import Asker
from batchproof.triage.scenes import Scene
from batchproof.triage.scoring import Reading

LONGEST_SHRINK_S = 20.0
Part = TypeVar("Part")
ORIGIN = FailureOrigin("batchproof triage", "triage")


def smallest(scene: Scene, is_wrong: Callable[[Scene], bool], deadline: float) -> Scene:
    """Returns a scene of as few calls and requests as are found to show the same, within the time."""
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
    yield from _shorter(scene)
    for place, call in enumerate(scene):
        for requests in _shorter(call.requests):
            yield (*scene[:place], replace(call, requests=requests), *scene[place + 1 :])


def _shorter(parts: tuple[Part, ...]) -> Iterator[tuple[Part, ...]]:
    """Yields what is left without a stretch: halves at first, single parts at last."""
    size = len(parts) // 2
    while size:
        for start in range(0, len(parts), size):
            if rest := parts[:start] + parts[start + size :]:
                yield rest
        size //= 2


def words(reading: Reading, bound: float, unit: float | None) -> str:
    """Returns what is wrong with an answer in one sentence."""
    name = f"request {reading.request.request_id!r}"
    shape = f"{len(reading.request.prompt_token_ids)} prompt tokens"
    if reading.wrong:
        return f"{name} ({shape}): {reading.wrong}"
    step = reading.step_of(bound)
    regret = reading.regrets[step]
    size = f"{regret:.3g}" if unit is None else f"{regret:.3g} ({regret / unit:.3g} E)"
    token = reading.completion.token_ids[step]
    return f"{name} ({shape}), token {step}: {token} is {size} below the best in float64"


def setting_words(scene: Scene) -> str:
    """Returns a scene in one sentence."""
    config, sizes = scene[0].config, [len(call.requests) for call in scene]
    calls = f"{len(sizes)} calls of {sizes} requests" if len(sizes) > 1 else f"{sizes[0]} requests"
    limits = {
        "slots": config.max_num_seqs,
        "tokens a step": config.max_num_batched_tokens,
        "blocks": config.num_blocks,
        "block size": config.block_size,
        "prefix caching": config.prefix_caching or None,
    }
    given = ", ".join(f"{name} {value}" for name, value in limits.items() if value is not None)
    return f"{calls}; {given}"


def failure_file(asker: Asker, scene: Scene, directory: Path) -> str | None:
    """Judges the scene as the suite does, and writes what it finds; returns the file's name. None if
    the suite finds nothing: rounding of the model's own size is no failure."""
    oracle = asker.lab.oracle(asker.subject.name)
    trial = Trial(asker.lab, asker.spec, oracle, asker.capabilities, Promise.P1)
    try:
        with trial.engine(scene[0].config) as engine:
            for call in scene:
                trial.check(call, engine)
    except (ConformanceFailure, HangFailure) as error:
        return write(trial, error.failure, ORIGIN, directory).name
    except OracleError:
        return None
    return None
