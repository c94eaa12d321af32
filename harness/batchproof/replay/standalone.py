"""The stand-alone script: requests, right answers and a comparison, without this package."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jinja2

from batchproof.api import Completion, Request
from batchproof.checks.environment import EXACT
from batchproof.findings.failure import Failure, Run
from batchproof.findings.finding import Rule
from batchproof.findings.finding_text import evidence, first_line
from batchproof.models.catalogue import ModelUnderTest, load_model
from batchproof.models.checkpoints import without_bars
from batchproof.replay.case import RightAnswers, may_tie, right_answers
from batchproof.run.trial import Trial

TEMPLATE = Path(__file__).parent / "standalone.py.jinja"
Answer = tuple[str, list[int], str]  # id, tokens, finish reason


class NoScriptError(Exception):
    """States in a sentence why a failure has no stand-alone script."""


def script_text(trial: Trial, failure: Failure, right: RightAnswers, directory: Path, name: str) -> str:
    """Returns the script of a failure that shows in tokens or finish reasons. `right`: the answers to
    the last run of the scene.

    Saves an embedded model in the directory. Raises `NoScriptError`.
    """
    runs, compared = _wrong_runs(trial, failure, right)
    last = runs[-1].workload
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False
    )
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        name=f"{name}.py",
        headline=_docstring_safe(first_line(failure.finding)),
        evidence=[_docstring_safe(each) for each in evidence(failure.finding)],
        engine=_docstring_safe(failure.subject.engine),
        config=asdict(last.config),
        calls=[_call(each) for each in runs],
        right=compared,
        model=model_reference(trial.subject, directory),
        dtype=failure.subject.dtype,
        attention=trial.subject.model.config._attn_implementation,
        device=str(trial.subject.model.device),
        exactly=[each.statement(each.exact) for each in EXACT],
    )


def _wrong_runs(
    trial: Trial, failure: Failure, right: RightAnswers
) -> tuple[Sequence[Run], list[Answer | None]]:
    """Returns the scene whose last answers are wrong, and the right ones: of two scenes that were
    compared, it may be either."""
    if failure.rule is Rule.HANG:
        raise NoScriptError("the engine comes to no end, which the package alone can stop")
    for runs in filter(None, (failure.scene.runs, failure.scene.other)):
        if any(run.workload.aborts for run in runs):
            raise NoScriptError("requests are cancelled, which only the rules can judge")
        if any(request.sampling for run in runs for request in run.workload.requests):
            raise NoScriptError("requests have sampling parameters, which only the rules can judge")
        if any(run.workload.config.num_speculative_tokens for run in runs):
            raise NoScriptError("the engine speculates, and only the rules' package makes its drafts")
        got = [_answer(each) for each in runs[-1].completions]
        last = runs[-1].workload
        if runs is failure.scene.other:
            right = right_answers(trial, last)
        compared = [_compared(trial, *each) for each in zip(last.requests, right, strict=True)]
        if failure.rule is Rule.RAISED or not _are_equal(got, compared):
            return runs, compared
    raise NoScriptError(
        f"the failure does not show in tokens or finish reasons (rule {failure.rule}), or rounding may "
        f"excuse them"
    )


def _compared(trial: Trial, request: Request, right: Completion | None) -> Answer | None:
    """Returns the right answer; None where another is right as well."""
    if right is not None:
        return None if may_tie(trial, request) else _answer(right)
    is_refused = trial.subject.has_answer(request.prompt_token_ids)  # else its logits are NaN
    return (request.request_id, [], "error") if is_refused else None


def _answer(completion: Completion) -> Answer:
    return completion.request_id, list(completion.token_ids), completion.finish_reason.value


def _are_equal(got: Sequence[Answer], right: Sequence[Answer | None]) -> bool:
    if not got or len(got) != len(right):
        return not got  # nothing came back: there is nothing to compare
    return all(b is None or a == b for a, b in zip(got, right, strict=True))


def _call(run: Run) -> tuple[list[tuple[Any, ...]], list[int] | None]:
    workload = run.workload
    requests = [
        (r.request_id, r.prompt_token_ids, r.max_new_tokens, sorted(r.eos_token_ids))
        for r in workload.requests
    ]
    arrivals = workload.arrivals
    return requests, None if arrivals is None else list(arrivals)


def _docstring_safe(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"""', "'''")


def model_reference(subject: ModelUnderTest, directory: Path) -> str:
    """Returns what the script passes to `from_pretrained`, as Python text. Saves an embedded model if
    needed."""
    if not subject.is_embedded:
        path = Path(subject.name)
        return repr(str(path.resolve()) if path.exists() else subject.name)
    name = f"{subject.name}-{subject.dtype_name}"
    target = directory / "models" / name
    if not target.exists():
        _save(subject, target)
    return f'Path(__file__).parent / "models" / "{name}"'


def _save(subject: ModelUnderTest, target: Path) -> None:
    """Saves a newly made model, because an engine may have changed the one under test.

    A rename is atomic: of two processes one is first, and both have saved the same.
    """
    fresh = load_model(subject.name, subject.model.device, subject.model.dtype).model
    target.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
    with without_bars():
        fresh.save_pretrained(made)
    made.chmod(0o755)
    try:
        made.rename(target)
    except OSError:  # another process was first
        shutil.rmtree(made)
