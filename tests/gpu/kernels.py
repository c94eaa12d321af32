"""The attention kernels against the slow sum in float64, over random shapes:

    python -m tests.gpu.kernels SEED COUNT [--processes N] [--set torch]

On a GPU, or on any CPU in Triton's interpreter (`TRITON_INTERPRET=1`). Ends with a line that says how
much of what rounding explains was needed. Exit status 1 if more was, 77 if the set cannot run here.
"""

from __future__ import annotations

import json
import subprocess
import sys
import traceback
import warnings
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from time import monotonic

import torch

from batchproof.places import ROOT
from batchproof_paged.kernels import load_kernels, triton_works
from tests.gpu.cases import make_case
from tests.gpu.checks import IS_INTERPRETED, Findings, check
from tests.gpu.driver import SKIPPED


def run_cases(seeds: Sequence[int], name: str, device: torch.device) -> Findings:
    kernels = load_kernels(name)
    findings = Findings()
    for seed in seeds:
        case = make_case(seed, device, reads_whole_tables=name == "torch")
        try:
            check(findings, kernels, case)
        except Exception as error:
            traceback.print_exc(file=sys.stdout)
            findings.blame(f"raised {type(error).__name__}: {str(error)[:200]!r}", case)
    return findings


def _arguments() -> Namespace:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--set", default="triton", dest="name")
    parser.add_argument("--one-of", type=int, help="run each --processes-th case, from this one on")
    return parser.parse_args()


def main() -> int:
    arguments = _arguments()
    if arguments.name.startswith("triton") and not triton_works():
        print("0 cases: Triton is not installed, or has no GPU and TRITON_INTERPRET is not 1")
        return SKIPPED
    if arguments.one_of is None:
        return _run_side_by_side(arguments)
    warnings.simplefilter("ignore")  # the interpreter's own
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() and not IS_INTERPRETED else "cpu")
    first = 1000 * arguments.seed
    seeds = range(first + arguments.one_of, first + arguments.count, arguments.processes)
    found = run_cases(seeds, arguments.name, device)
    print(json.dumps({"num_cases": found.num_cases, "num_bad": len(found.bad), "worst": found.worst}))
    return 0


def _run_side_by_side(arguments: Namespace) -> int:
    """Runs each share of the cases in a process of its own, so that a crash affects no other share."""
    began = monotonic()
    command = [sys.executable, "-m", "tests.gpu.kernels", *sys.argv[1:], "--one-of"]
    workers = [
        subprocess.Popen([*command, str(number)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for number in range(min(arguments.processes, arguments.count))
    ]
    num_cases = num_bad = 0
    worst: dict[str, float] = {}
    for number, worker in enumerate(workers):
        *lines, last = (worker.communicate()[0] or "").splitlines() or [""]
        if worker.returncode != 0:
            lines.append(f"{last}\nBAD process {number} ended with {worker.returncode}")
            num_bad += 1
        else:
            found = json.loads(last)
            num_cases, num_bad = num_cases + found["num_cases"], num_bad + found["num_bad"]
            worst = {
                k: max(worst.get(k, 0.0), found["worst"].get(k, 0.0)) for k in worst | found["worst"]
            }
        print("\n".join(lines), end="\n" if lines else "", flush=True)
    summary = ", ".join(f"{kind} {share:.2g}" for kind, share in sorted(worst.items()))
    print(
        f"{num_cases} cases, {num_bad} bad, {monotonic() - began:.0f} s; share of rounding: {summary}"
    )
    return 1 if num_bad else 0


if __name__ == "__main__":
    sys.exit(main())
