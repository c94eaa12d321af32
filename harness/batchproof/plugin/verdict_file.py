"""`--verdict FILE`, and the verdict by a requirement set at the end of the output.

Both are of the process that hears of all tests: the controller, if there are workers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest

from batchproof.plugin.item_names import AGAIN_OPTIONS, options_given
from batchproof.plugin.journal_file import continued
from batchproof.plugin.left_out import LEFT_OUT
from batchproof.plugin.promise_table import counted
from batchproof.plugin.scoring import ASKED
from batchproof.plugin.selection import SELECTION
from batchproof.plugin.table_file import ran_to_its_end, writable_json
from batchproof.records.journal import entries
from batchproof.records.made import made_now, pytest_line
from batchproof.records.verdict import VERDICT, Conditions, EngineVerdict
from batchproof.requirements.verdict_of_journal import Asked, verdict_of, without_local_paths

OPTION = "--verdict"
HELP = "write the verdict on the engine to FILE as JSON when the session ends"
REPEATED = (*(each for each in AGAIN_OPTIONS if each != "--engine"), "--hypothesis-profile")


def register(config: pytest.Config) -> None:
    """Registers the verdict. Raises `pytest.UsageError` if no file can be written there."""
    path, is_worker = writable_json(config, OPTION), hasattr(config, "workerinput")
    if is_worker or (path is None and config.stash[ASKED] is None):
        return
    if path is not None and len(config.stash[SELECTION].engines) > 1:
        raise pytest.UsageError(f"{OPTION} holds the verdict on one engine: name one with --engine")
    config.pluginmanager.register(VerdictFile(path, config), "batchproof-verdict")


class VerdictFile:
    """The plugin that is registered if a verdict is asked for."""

    def __init__(self, path: Path | None, config: pytest.Config) -> None:
        self._path = path
        self._config = config
        journal = config.getoption("--journal")  # what it holds is not run again
        done = entries(Path(journal)) if journal else ()
        self._entries = {each.test: each for each in done}
        self.verdicts: list[EngineVerdict] = []  # once the session has ended

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collects the reports, those of workers included."""
        self._entries[report.nodeid] = continued(self._entries.get(report.nodeid), report)

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # outermost but for those who write the status
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None]:
        """Reaches the verdicts, writes them, and fails a run that leaves requirements out."""
        is_complete = ran_to_its_end(session)
        asked, left_out = self._config.stash[ASKED], self._config.stash[LEFT_OUT]
        if asked is None:  # a set tells by itself whether something is missing
            is_complete &= not (left_out.is_uncounted or left_out.num_without(self._entries))
        if any(each.record for each in self._entries.values()):
            self.verdicts = self._reached(is_complete)
        yield
        is_open = asked is not None and any(each.verdict == "incomplete" for each in self.verdicts)
        if session.exitstatus == pytest.ExitCode.OK and is_open:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        for each in self.verdicts:
            if self._path is not None:
                VERDICT.write(without_local_paths(each), self._path)

    def _reached(self, is_complete: bool) -> list[EngineVerdict]:
        config = self._config
        selection = config.stash[SELECTION]
        made = made_now(pytest_line(config.invocation_params.args))
        conditions = Conditions(
            options=tuple(f"{name}={value}" for name, value in options_given(config, REPEATED)),
            models=selection.model_names,
            device=selection.device,
            dtype=selection.dtype,
            profile=config.getoption("--hypothesis-profile") or "default",
        )
        asked = Asked(made.command, config.stash[ASKED], conditions)
        finished = self._entries.values()
        return [
            verdict_of(
                spec.name,
                [each for each in finished if each.record is None or each.record.engine == spec.name],
                is_complete,
                made,
                asked,
            )
            for spec in selection.engines
        ]

    @pytest.hookimpl(trylast=True)  # below the table
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Prints the verdicts, and the path of the file or that it was not written."""
        write = terminalreporter.write_line
        asked = self._config.stash[ASKED]
        if asked is not None and self.verdicts:
            terminalreporter.section(f"Batchproof: requirement set {asked.name}")
            ways = self._config.stash[LEFT_OUT].ways()
            for each in self.verdicts:
                words = in_words(each, ways)
                write(f"{each.engine}: {words}", red=each.verdict in ("broken", "incomplete"))
        if self._path is not None and not self.verdicts:
            write(f"{self._path}: not written")
        elif self._path is not None and self._config.get_verbosity() >= 0:  # -q: for a program
            write(f"verdict: {self._path}")


def in_words(verdict: EngineVerdict, ways: Sequence[str]) -> str:
    """Returns a line such as "held; of 512 requirements 400 held, 112 no capability". `ways` are the
    options that may have left some out."""
    words: list[str] = [verdict.verdict]
    for what, outcomes in (("requirement", verdict.outcomes), ("unscored test", verdict.unscored)):
        tally = ", ".join(f"{count} {word}" for word, count in Counter(outcomes.values()).items())
        words += [f"of {counted(len(outcomes), what)} {tally}"] if outcomes else []
    if ways and "not run" in verdict.outcomes.values():
        words.append(f"left out by {', '.join(ways)}")
    return "; ".join(words)
