"""One engine on its models, within a time limit."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from batchproof.errors import EngineHang, UnsupportedModelError
from batchproof.models.catalogue import ModelUnderTest
from batchproof.records.triage import CORRUPTION, VERDICTS, EngineTriage, ModelTriage
from batchproof.run.laboratory import Laboratory
from batchproof.run.registry import EngineSpec
from batchproof.triage.asking import Asker, NoAnswerError
from batchproof.triage.evidence import failure_file
from batchproof.triage.judging import Judging
from batchproof.triage.noise import measured_noise
from batchproof.triage.probes import probes
from batchproof.triage.scoring import Scorer
from batchproof.triage.triage import Decision, Known, Triage

WHEN = "during triage"


def triage_engine(
    lab: Laboratory,
    spec: EngineSpec,
    models: Sequence[str],
    time_limit_s: float,
    seed: int,
    directory: Path | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> EngineTriage:
    """Returns the verdict on an engine. Models that it does not serve are named; the first on which
    answers are corrupt is the last. `directory`: where failure files go; None: nowhere. `note` hears of
    each model before it is begun.

    Raises `UsageError` and `ConfigError` for what is wrong with the engine's options.
    """
    end = time.monotonic() + time_limit_s
    found: list[ModelTriage] = []
    refusals: list[str] = []
    for number, model in enumerate(models):
        now = time.monotonic()
        deadline = now + max(0.0, end - now) / (len(models) - number)
        note(f"{model}: measuring here what rounding explains, then asking {spec.name}")
        try:
            found.append(_on_model(lab, spec, model, deadline, seed, directory))
        except UnsupportedModelError as error:
            refusals.append(f"{model}: it refuses the model: {error}")
        except (NoAnswerError, EngineHang) as error:
            refusals.append(f"{model}: not one request is answered: {error}")
        lab.look_after(spec, lab.subject(model), WHEN)
        if found and found[-1].verdict == CORRUPTION:
            break
    worst = max((each.verdict for each in found), key=VERDICTS.index, default=None)
    return EngineTriage(spec.name, worst, tuple(found), tuple(refusals))


def _on_model(
    lab: Laboratory, spec: EngineSpec, model: str, deadline: float, seed: int, directory: Path | None
) -> ModelTriage:
    subject = lab.subject(model)
    asker = Asker(lab, spec, subject, lab.capabilities(spec, subject))
    known = _known(subject, seed)
    # Without a folder for it, what is found wrong is not made small.
    shrinks_until = 0.0 if directory is None else deadline
    judging = Judging(asker, known.scorer, known.noise, shrinks_until)
    began = time.monotonic()
    decision = Triage(judging, known, deadline).decide()
    file = None
    if directory is not None and decision.scene is not None:
        file = failure_file(asker, decision.scene, directory)
    return _recorded(decision, judging, known, time.monotonic() - began, file)


def _recorded(
    decision: Decision, judging: Judging, known: Known, seconds: float, failure: str | None
) -> ModelTriage:
    """Returns the decision with what it rests on."""
    noise, subject = known.noise, known.scorer.subject
    is_measured = noise.unit is not None and decision.verdict != CORRUPTION
    regrets = {key: reading.worst for key, (reading, _) in judging.worst.items()}
    in_units = {key: each / (noise.unit or 1.0) for key, each in regrets.items() if is_measured}
    return ModelTriage(
        subject.name,
        subject.dtype_name,
        decision.verdict,
        decision.why,
        decision.lines,
        noise.unit,
        in_units.get(True),
        in_units.get(False),
        noise.precision_of(max(regrets.values(), default=0.0)) if is_measured else "",
        judging.configuration.name,
        judging.num_requests,
        judging.num_tokens,
        judging.num_scenes,
        round(seconds, 1),
        failure,
    )


_KNOWN: dict[tuple[int, int], Known] = {}


def _known(subject: ModelUnderTest, seed: int) -> Known:
    """Returns what is known of the model, measured once for all engines."""
    key = id(subject), seed
    if key not in _KNOWN:
        noise = measured_noise(subject)
        scorer = Scorer(subject)
        _KNOWN[key] = Known(scorer, noise, probes(scorer, noise.unit, seed), seed)
    return _KNOWN[key]
