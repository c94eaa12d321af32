"""`batchproof lab NAME`: the commands that check the suite itself."""

from collections.abc import Sequence

from batchproof.cli.commands import Command, run_command

PURPOSE = "Checks the suite itself, in a checkout."
COMMANDS = {
    "faults": Command(
        "batchproof_lab.faults_command", "run the suite on every planted fault and write the kill table"
    ),
    "honest": Command(
        "batchproof_lab.honest_command", "look for false alarms: honest engines on many workloads"
    ),
    "reports": Command(
        "batchproof_lab.reports_command",
        "write the reports on defects of released libraries to their maintainers",
    ),
    "verifier": Command(
        "batchproof_lab.verifier_command", "measure the power of triage on simulated endpoints"
    ),
}


def run(argv: Sequence[str]) -> int:
    """Runs one command and returns its exit code. Raises `UsageError`."""
    return run_command(COMMANDS, argv, "batchproof lab", PURPOSE)
