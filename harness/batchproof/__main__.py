"""The console script `batchproof`; `python -m batchproof` is the same.

Exit codes: 0 fine, 1 something was found wrong, 2 wrong input (one sentence on stderr), 130 stopped
with Ctrl-C, 143 with SIGTERM, 141 the reader of the output has closed it.
"""

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from io import TextIOWrapper

from batchproof import __version__, places
from batchproof.cli.commands import Command, run_command
from batchproof.cli.interrupts import interruptible
from batchproof.errors import BatchproofError, Interrupt, UsageError

INTERRUPTED = 128 + 2  # SIGINT
BROKEN_PIPE = 128 + 13  # SIGPIPE

PURPOSE = "Proves that an LLM engine's batching changes only its speed."
EPILOG = "In a checkout, `batchproof lab` lists the commands that check the suite itself."
LAB = "batchproof_lab"  # in no wheel

OF_VERDICTS = {
    "matrix": Command(
        "batchproof.judgement.matrix_command",
        "judge one engine in several configurations, and say which setting decides",
    ),
    "releases": Command(
        "batchproof.judgement.releases_command",
        "judge releases of one engine, and say which broke or mended which requirement",
    ),
}
COMMANDS = {
    "test": Command("batchproof.cli.conformance", "run the conformance suite on engines"),
    "bench": Command("batchproof.cli.bench_command", "measure engines, counting only checked tokens"),
    "plot": Command("batchproof.bench.plot_command", "draw the ratios of benchmark files"),
    "judge": Command(
        "batchproof.judgement.judge_command",
        "run the whole suite on an engine and write a verdict page",
        OF_VERDICTS,
    ),
    "triage": Command(
        "batchproof.triage.triage_command",
        "say of a running engine whether its answers are corrupt, rounded, or set otherwise",
    ),
    "probe-pack": Command(
        "batchproof.triage.pack_command",
        "make from weights what `triage --pack` asks an endpoint that serves them",
    ),
    "invariance": Command(
        "batchproof.judgement.invariance_command",
        "grade how far answers depend on batch, neighbours, arrival, chunks, prefix hits and others",
    ),
    "replay": Command(
        "batchproof.replay.replay_command", "run again a failure that --repro has written"
    ),
    "checkpoint": Command(
        "batchproof.cli.checkpoint", "write an embedded model to disk, for engines that load their own"
    ),
    "dropin": Command(
        "batchproof.dropin", "write a test file for an engine's own tests, with checkpoint and answers"
    ),
    "install": Command(
        "batchproof.cli.install", "install released engines, each into an environment of its own"
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal without UTF-8 gets escapes, not a crash
            stream.reconfigure(errors="backslashreplace")
    try:
        with interruptible():
            exit_code = _dispatch(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()  # a pipe that broke shows here, not when the interpreter goes down
    except BatchproofError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except Interrupt as interrupt:
        return interrupt.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # What is still buffered goes nowhere, so that the interpreter does not complain on exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    return exit_code


def _dispatch(argv: Sequence[str]) -> int:
    if argv[:1] != ["lab"]:
        return run_command(COMMANDS, argv, "batchproof", PURPOSE, EPILOG, __version__)
    if find_spec(LAB) is None or places.ROOT != places.CHECKOUT:
        raise UsageError("`batchproof lab` checks the suite itself: run it in a checkout of Batchproof")
    return importlib.import_module(f"{LAB}.__main__").run(argv[1:])


if __name__ == "__main__":
    sys.exit(main())
