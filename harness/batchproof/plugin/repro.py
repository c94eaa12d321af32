"""`--repro DIR`: each failure of an engine leaves a script, a case and the model in the folder."""

from __future__ import annotations

import traceback
from collections.abc import Generator
from pathlib import Path

import pytest

from batchproof.checks.verdict import ConformanceFailure
from batchproof.errors import EngineHang
from batchproof.repro.failed import Failed
from batchproof.repro.write import write
from batchproof.run.trial import Trial

OPTION = "--repro"
MARK = "\nrepro: "  # between a failure's text and where it lies
HELP = "for each failure write a stand-alone script and a YAML case that show it again to DIR"


class Repro:
    """Registered where the option is given."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # outermost: the report's text stands
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        trial = getattr(item, "funcargs", {}).get("trial")
        if report.failed and call.excinfo is not None and isinstance(trial, Trial):
            error = _of_the_engine(call.excinfo.value)
            if error is not None:
                report.longrepr = f"{report.longrepr}{MARK}{self._told(error, trial, item)}"
        return report

    def _told(self, error: ConformanceFailure | EngineHang, trial: Trial, item: pytest.Item) -> str:
        """Where it lies; what goes wrong here must not hide the failure itself."""
        if error.scene is None:
            return "none, for nothing had been asked of the engine yet"
        try:
            failed = Failed(error, error.scene, trial, item.nodeid, _name(item))
            return str(write(failed, self.directory))
        except Exception as trouble:
            where = traceback.extract_tb(trouble.__traceback__)[-1]
            return f"none: {type(trouble).__name__}: {trouble} ({where.filename}:{where.lineno})"


def _of_the_engine(error: BaseException) -> ConformanceFailure | EngineHang | None:
    """Hypothesis tells a failure that comes and goes as a group."""
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else (error,)
    return next((e for e in inner if isinstance(e, ConformanceFailure | EngineHang)), None)


def _name(item: pytest.Item) -> str:
    """Of the case, where the test runs one; else of the test."""
    case = getattr(item, "callspec").params.get("case")  # noqa: B009 - only functions have it
    return case.name if case is not None else getattr(item, "originalname").removeprefix("test_")  # noqa: B009


def register(config: pytest.Config) -> None:
    directory = config.getoption(OPTION)
    if directory and Path(directory).exists() and not Path(directory).is_dir():
        raise pytest.UsageError(f"{OPTION} {directory!r} is a file, but must be a folder")
    if directory:
        config.pluginmanager.register(Repro(Path(directory).resolve()), "batchproof-repro")
