"""An engine in any language, behind a pipe: `--engine="cmd:COMMAND LINE"`.

The program reads one JSON object per line from its stdin and answers each with exactly one line on its
stdout. `protocol.py` defines operations and fields; `docs/piped_engines.md` explains them to authors of
engines. There are no logits and no trace.

One process serves many engines, because a process for each would take hours; the suite numbers them.
"""

import os
import shlex
import shutil
from pathlib import Path

from batchproof.api import EngineFactory
from batchproof.errors import UsageError
from batchproof_engines.adapters.piped.engine import factory_of
from batchproof_engines.adapters.piped.process import kept_program


def command_line(command: str) -> EngineFactory:
    """Returns the factory of the engine that this command line starts. Nothing is started yet.

    The command is split as a POSIX shell would, but no shell runs it. Raises `UsageError` if it is
    malformed or there is no such program.
    """
    try:
        first, *rest = shlex.split(command)
    except ValueError as error:  # from shlex, or from unpacking an empty list
        why = str(error) if command.strip() else "it is empty"
        raise UsageError(
            f"--engine 'cmd:{command}': no command line ({why}); give a program and its arguments"
        ) from error
    found = shutil.which(first)
    if found is None:
        raise UsageError(f"--engine 'cmd:{command}': {_why_not(first)}")
    return factory_of(kept_program(f"cmd:{command}", (os.path.abspath(found), *rest), os.getcwd()))


def _why_not(first: str) -> str:
    if not os.path.dirname(first):
        return f"there is no program {first!r} on the PATH"
    if Path(first).exists():
        return f"{first!r} is not executable; chmod +x it, or name the program that runs it first"
    return f"there is no program {first!r}"
