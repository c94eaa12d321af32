"""`batchproof lab reports`: writes the reports on defects of released libraries, ready to send.

Nothing is sent.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from batchproof.errors import UsageError
from batchproof.records.file_kinds import replace_text
from batchproof.requirements.issues import DEFAULT_ISSUES
from batchproof.run.registry import released_engines
from batchproof_lab.reports.recording import record, recording_of
from batchproof_lab.reports.report_pages import pages
from batchproof_lab.reports.upstream_report import UpstreamReport, UpstreamReports, read_reports

FOLDER = DEFAULT_ISSUES.parent


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--record",
        nargs="*",
        metavar="REPORT",
        help="first run the scripts of these reports, or of all, on the libraries of `batchproof "
        "install`, and keep what they print",
    )


def run(arguments: argparse.Namespace) -> int:
    """Returns 0 if every script that was run still shows its defect, else 1. Raises `UsageError`."""
    found = read_reports(FOLDER / "reports.yaml")
    shown = True
    for each in _chosen(found, arguments.record):
        shown &= _recorded(each, found)
    folder = FOLDER / "reports"
    folder.mkdir(exist_ok=True)
    texts = pages(found, FOLDER)
    for name, text in texts.items():
        replace_text(folder / name, text)
    print(f"written: {len(texts) - 1} reports and their index in {folder}", file=sys.stderr)
    return 0 if shown else 1


def _chosen(found: UpstreamReports, names: list[str] | None) -> list[UpstreamReport]:
    """Returns the reports whose scripts are to be run; an empty list of names means all."""
    known = {each.name: each for each in found.reports}
    for name in names or ():
        if name not in known:
            raise UsageError(f"REPORT {name!r} is none of {', '.join(known)}")
    return [] if names is None else [known[name] for name in names or known]


def _recorded(report: UpstreamReport, found: UpstreamReports) -> bool:
    library = found.libraries[report.library]
    python: str | None = sys.executable
    if library.environment is not None:
        python = released_engines().interpreter(library.environment)
    if python is None:
        raise UsageError(f"{library.title} is not installed: batchproof install {library.environment}")
    shown = True
    for name in report.scripts:
        script = Path(FOLDER, "reproductions", name)
        recording = record(script, python, library.packages)
        recording.write(recording_of(script))
        print(f"{name}: {'reproduced' if recording.is_reproduced else 'NOT REPRODUCED'}")
        shown &= recording.is_reproduced
    return shown
