"""Runs the scene of a failure again and judges it with the checks of the suite."""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import nullcontext
from enum import IntEnum
from typing import Any, cast

from batchproof.api import Capability, Completion, MaskingEngine, RowRecord
from batchproof.cases.files import load_cases
from batchproof.cases.runner import run_calls, run_case
from batchproof.cases.schema import Case
from batchproof.checks.broken import require
from batchproof.checks.masks import mask_findings, move_findings
from batchproof.checks.refusals import event_findings, refusal_findings, word_findings
from batchproof.errors import CaseError, OracleError
from batchproof.findings.finding import Failure, Run, Scene, thawed
from batchproof.findings.finding_text import first_line
from batchproof.findings.rules import Replay, Rule
from batchproof.invariance.axes import AXES
from batchproof.invariance.grades import Grade
from batchproof.invariance.measure import require_grade
from batchproof.oracle.oracle import largest_move
from batchproof.replay.case import asked_workloads, case_text, loaded_case
from batchproof.requirements.promises import Promise
from batchproof.run.cancelling import check_run_with_aborts
from batchproof.run.failures import ConformanceFailure, HangFailure
from batchproof.run.interrupting import NEEDED
from batchproof.run.relations import (
    blame,
    check_returned_logits,
    comparing,
    is_bitwise,
    require_same_bits,
)
from batchproof.run.trial import Trial
from batchproof.workload.workloads import Outcome, Workload, cut

MOVED = {Rule.UNSEEN_MOVES: False, Rule.SEEN_STAYS: True}
NUM_TRIES = 5  # of a failure that comes and goes


class ReplayResult(IntEnum):
    """What became of a failure, as the exit code of the command."""

    GONE = 0
    REPRODUCED = 1
    UNKNOWN = 2


def replayed(trial: Trial, failure: Failure) -> tuple[ReplayResult, str]:
    """Returns what became of the failure on the engine of the trial, and a sentence about it."""
    lacks = lacking(failure, trial.capabilities)
    if lacks is not None:
        return ReplayResult.UNKNOWN, f"{trial.spec.name} lacks the capability {lacks}"
    comes_and_goes = failure.promise is Promise.P16 or not failure.is_repeatable
    for _ in range(NUM_TRIES if comes_and_goes else 1):
        try:
            judge(trial, failure)
        except (ConformanceFailure, HangFailure) as error:
            return _compared(error.failure, failure)
        except CaseError as error:
            return ReplayResult.UNKNOWN, f"the scene cannot be rebuilt as a case: {error}"
    return ReplayResult.GONE, f"{trial.spec.name} does not show it on {trial.subject.name}"


def is_shown_again(trial: Trial, failure: Failure) -> bool | None:
    """Returns whether an immediate replay, by a trial of its own, shows the failure; None for a hang,
    which would only hang again."""
    if failure.rule.replay is Replay.HANG:
        return None
    try:
        return replayed(trial.renewed(failure.promise), failure)[0] is ReplayResult.REPRODUCED
    except OracleError:
        return False


def lacking(failure: Failure, capabilities: AbstractSet[Capability]) -> Capability | None:
    """Returns the missing capability without which neither presence nor absence of the failure says
    anything, or None."""
    needed = {failure.rule.needs} if failure.rule.needs else set()
    for run in (*failure.scene.runs, *failure.scene.other):
        workload = run.workload
        asked = {
            Capability.STEPPING: workload.needs_stepping,
            Capability.ADAPTERS: workload.adapters,
            Capability.WEIGHT_UPDATES: workload.weights,
            Capability.INTERRUPTION: workload.is_interrupted,
            Capability.STRUCTURED: any(request.grammar for request in workload.requests),
            Capability.SPECULATION: workload.config.num_speculative_tokens,
        }
        needed |= {each for each, is_asked in asked.items() if is_asked}
        needed |= {NEEDED[each.kind] for each in workload.interruptions}
    return min(needed - capabilities, default=None)


def _compared(now: Failure, then: Failure) -> tuple[ReplayResult, str]:
    """Compares two failures. The same promise must be broken, and an engine that raises now must have
    raised then."""
    words = first_line(now.finding)
    is_crash = now.rule.replay is Replay.CRASH and then.rule.replay is not Replay.CRASH
    if now.promise is then.promise and not is_crash:
        return ReplayResult.REPRODUCED, words
    return ReplayResult.UNKNOWN, f"it fails in another way now: {words}"


def judge(trial: Trial, failure: Failure) -> None:
    """Runs the failure's scene and judges it. Raises `ConformanceFailure` or `HangFailure` if
    something is wrong, and `CaseError` for a scene that no case can hold."""
    finding = failure.finding
    case = _curated(failure)
    if case is not None:
        run_case(trial, case)
        return
    with blame(finding.promise, finding.appeared) if finding.appeared else nullcontext():
        JUDGES.get(finding.rule.replay, _check_calls)(trial, failure)


def _curated(failure: Failure) -> Case | None:
    """Returns the case that found the failure, if this package still has it."""
    name = failure.case and failure.case.name
    return next((each for each in load_cases() if each.name == name), None) if name else None


def _check_calls(trial: Trial, failure: Failure) -> None:
    """Makes all calls on one engine and judges every answer and the conduct."""
    if failure.scene.workload.aborts:
        _check_aborts(trial, failure)
        return
    if any(run.workload.adapters or run.workload.has_lifecycle for run in failure.scene.runs):
        # A case has nothing of the kind.
        trial.check_calls([run.workload for run in failure.scene.runs])
        return
    text = case_text(trial, failure, "replayed-failure", "replay")
    if text is not None:
        run_calls(trial, loaded_case(text), asked_workloads(trial, failure))


def _check_aborts(trial: Trial, failure: Failure) -> None:
    workload = failure.scene.workload
    with trial.engine(workload.config) as engine:
        for run in failure.scene.runs[:-1]:
            trial.run(run.workload, engine)
        check_run_with_aborts(trial, workload, engine)


def _check_refusal(trial: Trial, failure: Failure) -> None:
    workload, finding = failure.scene.workload, failure.finding
    outcome = _served(trial, failure.scene.runs)
    ids = [request.request_id for request in workload.requests]
    place = max(index for index, each in enumerate(ids) if each == finding.request_id)
    with trial.reporting(workload):
        if finding.rule is Rule.REFUSAL_WORDS:
            require(word_findings(workload, outcome.completions, trial.subject, trial.ledger))
        elif finding.rule is Rule.REFUSAL_EVENT:
            require(event_findings(outcome.events, ids[place], finding.promise))
        else:
            answer, request = outcome.completions[place], workload.requests[place]
            require(refusal_findings(answer, request, trial.ledger))


def _check_mask(trial: Trial, failure: Failure) -> None:
    facts = failure.finding.facts
    layout = thawed(facts["layout"])
    rows = [RowRecord(f"r{i}", context, query, True) for i, (context, query) in enumerate(layout)]
    window = cast("int | None", facts["window"])
    nothing = Workload(())
    with trial.engine(nothing.config) as engine, trial.reporting(nothing):
        require(mask_findings(cast(MaskingEngine, engine).attention_mask(rows), rows, window))


def _check_grade(trial: Trial, failure: Failure) -> None:
    facts = failure.finding.facts
    require_grade(trial, AXES[str(facts["axis"])], Grade.of(str(facts["declared"])))


def _check_returned(trial: Trial, failure: Failure) -> None:
    check_returned_logits(trial, [run.workload for run in failure.scene.runs])


def _compare(trial: Trial, failure: Failure) -> None:
    """Compares the answers to one request in two scenes, each on an engine of its own."""
    if not failure.scene.other:
        _check_calls(trial, failure)
        return
    finding, scene = failure.finding, failure.scene
    name = finding.request_id
    before, after = (_answer(trial, runs, name) for runs in (scene.other, scene.runs))
    with trial.reporting(scene.workload):
        if finding.rule in MOVED:
            _check_moves(trial, failure, before, after)
            return
        relation = str(finding.facts["relation"])
        old, new = ([_of_one_length(scene, name, each)] for each in (before, after))
        require_same_bits(trial, finding.promise, relation, old, new)


def _answer(trial: Trial, runs: Sequence[Run], name: str | None) -> Completion:
    return next(each for each in _served(trial, runs).completions if each.request_id == name)


def _of_one_length(scene: Scene, name: str | None, answer: Completion) -> Completion:
    """Returns the answer, cut where the request has a smaller cap in one of the scenes."""
    caps = {
        request.max_new_tokens
        for runs in (scene.other, scene.runs)
        for request in runs[-1].workload.requests
        if request.request_id == name
    }
    is_longer = len(caps) > 1 and len(answer.token_ids) > min(caps)
    return cut(answer, min(caps)) if is_longer else answer


def _check_moves(trial: Trial, failure: Failure, before: Completion, after: Completion) -> None:
    facts: Mapping[str, Any] = failure.finding.facts
    if before.logits is None or after.logits is None:
        return
    moved = largest_move(before.logits, after.logits)
    allowed = 0.0 if is_bitwise(trial) else facts["bound"]
    should_move = MOVED[failure.rule]
    query, position, bound = facts["query"], facts["position"], facts["bound"]
    with comparing(trial, before, after):
        require(move_findings(query, position, moved, should_move, bound, allowed))


def _served(trial: Trial, runs: Sequence[Run]) -> Outcome:
    """Returns the outcome of the last run, with all runs on one engine."""
    with trial.engine(runs[-1].workload.config) as engine:
        for run in runs[:-1]:
            trial.run(run.workload, engine)
        return trial.run(runs[-1].workload, engine)


JUDGES: Mapping[Replay, Callable[[Trial, Failure], None]] = {
    Replay.COMPARE: _compare,
    Replay.MASK: _check_mask,
    Replay.REFUSAL: _check_refusal,
    Replay.GRADE: _check_grade,
    Replay.RETURNED: _check_returned,
}
