"""`batchproof judge verify VERDICT.json`: runs a random share of its requirements again."""

import argparse
import math
import random
import shlex
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from batchproof.cli.choices import whole
from batchproof.cli.option_names import CONFIG, NO_CONFIG
from batchproof.cli.pytest_process import run_pytest
from batchproof.errors import UsageError
from batchproof.places import SUITE
from batchproof.plugin.scoring import ONE
from batchproof.records.provenance import versions
from batchproof.records.suite_stamp import suite_stamp
from batchproof.records.texts import counted
from batchproof.records.verdict import VERDICT, EngineVerdict
from batchproof.requirements.consistency import consistent_verdict

RAN = ("held", "failed", "known")  # what else was asked compared nothing
SAME = {"known": "failed"}  # whether a failure was expected is no matter of the engine's


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("verdict", type=Path, metavar="VERDICT.json")
    parser.add_argument("--engine", metavar="ENGINE", help="(default: as in the verdict)")
    parser.add_argument(
        "--share", type=share, default=0.1, help="of the requirements that ran (default: %(default)s)"
    )
    parser.add_argument("--seed", type=whole, help="of the draw (default: a random one, printed)")


def share(value: str) -> float:
    """Returns a share. Raises `argparse.ArgumentTypeError`."""
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not 0 < number <= 1:
        raise argparse.ArgumentTypeError(f"{value!r} must be a number above 0 and up to 1")
    return number


def run(arguments: argparse.Namespace) -> int:
    """Returns 0 if all outcomes are the same, 1 if one differs. Raises `UsageError` (exit status 2) if
    they cannot be compared."""
    before = consistent_verdict(arguments.verdict)
    _require_same_suite(before)
    seed = random.randrange(10**6) if arguments.seed is None else arguments.seed
    sampled = sample(before, arguments.share, seed)
    engine = arguments.engine or before.engine
    of = counted(len(_ran(before)), "requirement")
    print(f"verifying {len(sampled)} of {of} that ran, --seed={seed}", flush=True)
    after = _run_again(engine, before, sampled)
    if after.release != before.release:
        raise UsageError(f"the verdict is on {before.release!r}, but {engine!r} is {after.release!r}")
    differing = [
        f"{each}: was {before.outcomes[each]}, is {after.outcomes.get(each, 'not run')}"
        for each in sampled
        if _plain(before.outcomes, each) != _plain(after.outcomes, each)
    ]
    compared = f"{counted(len(sampled), 'requirement')} compared"
    same = f"{len(differing)} differ" if differing else "all are the same"
    print("\n".join([*_other_versions(before), *differing, f"{compared}: {same}"]))
    return 1 if differing else 0


def sample(verdict: EngineVerdict, share: float, seed: int) -> list[str]:
    """Returns that share of the requirements that ran, at least one. Raises `UsageError`."""
    ran = _ran(verdict)
    if not ran:
        raise UsageError("the verdict holds no outcome of a requirement that ran")
    return sorted(random.Random(seed).sample(ran, math.ceil(share * len(ran))))


def _ran(verdict: EngineVerdict) -> list[str]:
    return sorted(name for name, each in verdict.outcomes.items() if each in RAN)


def _require_same_suite(verdict: EngineVerdict) -> None:
    """Raises `UsageError` if other code has judged."""
    own = suite_stamp()
    if verdict.suite != own:
        raise UsageError(
            f"the verdict is of another suite, {verdict.suite.version}, digest {verdict.suite.digest}; "
            f"this one is {own.version}, digest {own.digest}"
        )


def _run_again(engine: str, verdict: EngineVerdict, sampled: list[str]) -> EngineVerdict:
    """Returns the verdict on the sampled requirements. Raises `UsageError` if there is none."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "verdict.json"
        options = [each for each in verdict.conditions.options if not each.startswith(CONFIG)]
        arguments = [engine, *options, NO_CONFIG, *(f"{ONE}={each}" for each in sampled)]
        arguments += ["-q", "--isolate", "--diagnose-for=0", f"--verdict={path}"]
        run_pytest(SUITE, arguments, ["--benchmark-storage=file://."])
        if not path.exists():
            raise UsageError(f"{shlex.quote(engine)} could not be run: see above")
        return VERDICT.read(path)


def _plain(outcomes: Mapping[str, str], requirement: str) -> str | None:
    outcome = outcomes.get(requirement)
    return SAME.get(outcome, outcome) if outcome else None


def _other_versions(verdict: EngineVerdict) -> list[str]:
    """Returns a line for each library that is another one than the verdict was made with."""
    then = verdict.made.versions
    both = [(each, then[each], now) for each, now in versions().items() if each in then]
    return [f"note: {each} was {old}, is {new}" for each, old, new in both if old != new]
