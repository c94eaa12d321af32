"""`.ci/gpu`: see docs/gpu.md. Exit status: 0 all steps passed, 1 some did not, 2 wrong usage."""

import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile

if find_spec("pydantic") is None:
    sys.exit("error: this Python has no pydantic: put its wheels into .whl/ with `.ci/gpu_wheels .whl`")

from batchproof.errors import UsageError
from tests.gpu.driver import Driver
from tests.gpu.plan import Plan, Setting

DRY = "--dry"


def main(arguments: Sequence[str]) -> int:
    try:
        setting = Setting.of(is_dry=DRY in arguments)
        plan = chosen(setting.plan(), [each for each in arguments if each != DRY])
        out = usable(setting.out)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    # In the background interrupts are ignored, also by the steps: here they are let in again.
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.default_int_handler)
    driver = Driver(out, setting.rungs)
    with suppress(KeyboardInterrupt):
        for part, steps in plan.items():
            driver.run(part, steps)
    for line in ("##### summary", *map(str, driver.outcomes)):
        driver.report(line)
    print(f"files: {out}")
    return 0 if all(each.is_good for each in driver.outcomes) else 1


def chosen(plan: Plan, names: Sequence[str]) -> Plan:
    """Returns the requested parts, by default all, in the order of the plan. Raises `UsageError`."""
    for name in names:
        if name not in plan:
            raise UsageError(f"part {name!r} is unknown; choose from {', '.join(plan)}, or {DRY}")
    return {name: steps for name, steps in plan.items() if not names or name in names}


def usable(out: Path) -> Path:
    """Returns the output folder, created if necessary. Raises `UsageError`."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=out).close()
    except OSError as error:
        raise UsageError(f"OUT={str(out)!r} must be a folder to write to: {error.strerror}") from None
    return out


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
