"""The text of a script: what a failure needs, and nothing else."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from pathlib import Path

from batchproof.repro import functions, literals
from batchproof.repro.checks import Look, look_for
from batchproof.repro.engines import engine_text
from batchproof.repro.failed import Failed
from batchproof.repro.models import model_text
from batchproof.repro.parts import imports_of, parts_of
from batchproof.workload.workloads import Workload

HOW_TO_RUN = """
Run it where `harness` and the engine can be imported; another engine may take its place:

    PYTHONPATH=path/to/batchproof python THIS.py [pkg.mod:factory]

It exits with 1 if the failure is still there, with 0 if not, with 2 if it cannot tell. A failure that
takes what other engines have left behind in the process is not shown by one engine alone.
"""
BLIND_SAYS = "No script can tell whether this failure is still there: judge by what it prints."
SPARE_STEPS = 64  # beyond the bound of the longest call


# To fail in importing is not to reproduce anything.
GUARD = """
import sys

try:
    import batchproof.api
except ModuleNotFoundError:
    print("CANNOT TELL: put both source roots of Batchproof, or its wheel, on PYTHONPATH")
    sys.exit(2)
""".lstrip()


def script_text(failed: Failed, directory: Path) -> str:
    """A program that shows the failure. Saves the model in the directory."""
    look, engine = look_for(failed), engine_text(failed.trial.spec.name)
    own = [
        functions.load_model(failed, model_text(failed.trial.subject, directory)),
        *([engine.functions.strip()] if engine.functions else []),
        functions.factory(engine.expression),
        functions.give_up(failed),
        *([functions.answer(failed)] if look.compares else []),
        functions.look_function(failed, look),
        functions.main(failed, look),
    ]
    code = "\n\n\n".join([_constants(failed, look), *parts_of(own), *own])
    code += '\n\n\nif __name__ == "__main__":\n    sys.exit(main())\n'
    imports = imports_of(code, engine.imports)
    first, _, others = imports.partition("\n")  # the one from __future__
    return f"{_docstring(failed, look)}\n\n{first}\n\n{GUARD}{others}\n\n{code}"


def _docstring(failed: Failed, look: Look) -> str:
    subject = failed.trial.subject
    lines = [
        f"{failed.promise} is broken, on {failed.trial.spec.name}: shown without the test suite.",
        "",
        *_wrapped("finding:   ", failed.finding),
        *(line for each in failed.evidence for line in _wrapped("           ", each)),
        *_wrapped("promise:   ", failed.promise.sentence),
        f"engine:    {failed.trial.spec.name}",
        f"model:     {subject}, {'beside this file' if subject.is_embedded else 'loaded by its name'}",
        f"found by:  {failed.test}",
        *HOW_TO_RUN.rstrip().split("\n"),
        *([BLIND_SAYS] if look.is_blind else []),
    ]
    return '"""' + "\n".join(lines).replace("\\", "\\\\").replace('"""', "'''") + '\n"""'


def _wrapped(head: str, told: str) -> list[str]:
    told = " ".join(told.split()) if len(told) > literals.WIDTH else told
    indent = " " * len(head)
    return textwrap.wrap(
        told, literals.WIDTH, initial_indent=head, subsequent_indent=indent, break_on_hyphens=False
    )


def _constants(failed: Failed, look: Look) -> str:
    num_runs = len(failed.every_workload) * (functions.NUM_TRIES if failed.is_a_race else 1)
    max_steps = max(workload.step_bound for workload in failed.every_workload) + SPARE_STEPS
    found = {
        "FINDING": literals.text(failed.finding),
        "TIME_LIMIT_S": f"{failed.trial.lab.time_limit_s * num_runs:g}",
        "MAX_STEPS": str(max_steps) if failed.is_stepped or "MAX_STEPS" in look.wrong else "",
        "CONFIG": literals.config(failed.config),
        "CALLS": _calls(failed.workloads, failed.is_stepped),
        "OTHER_CALLS": _calls(failed.other_workloads, failed.is_stepped) if look.compares else "",
        **look.constants,
    }
    text = "\n".join(f"{name} = {value}" for name, value in found.items() if value)
    told = "# One after the other, on one engine; the last is the one that failed.\n"
    return text.replace("\nCALLS = ", f"\n{told}CALLS = ")


def _calls(workloads: Iterable[Workload], is_stepped: bool) -> str:
    """Each the requests; with steps also the arrivals and the aborts."""
    return literals.block(_call(each, is_stepped) for each in workloads)


def _call(workload: Workload, is_stepped: bool) -> str:
    requests = literals.block((literals.request(each, 8) for each in workload.requests), 4)
    if not is_stepped:
        return requests
    arrivals = workload.arrivals
    if arrivals is None and workload.aborts:
        arrivals = (0,) * len(workload.requests)
    aborts = ", ".join(f"({literals.text(name)}, {step})" for name, step in workload.aborts)
    return f"({requests}, {None if arrivals is None else list(arrivals)}, [{aborts}])"
