"""An engine in any language, behind a pipe: `--engine="cmd:COMMAND LINE"`.

The program reads one JSON object a line from its stdin and answers each with exactly one line on its
stdout, in order, in UTF-8. Its stderr is its own: the last lines are shown when something goes wrong.
When its stdin is closed it ends. Protocol 1:

    -> {"op": "hello", "protocol": 1}
    <- {"name": "my-engine", "version": "1.2", "capabilities": ["stepping"]}      or []: it cannot step
    -> {"op": "build", "engine": 1, "model": "/a/checkpoint", "dtype": "float32", "config": {...}}
    <- {}                                          or {"unsupported": "why it cannot serve the model"}
    -> {"op": "generate", "engine": 1, "requests": [REQUEST, ...]}
    <- {"completions": [COMPLETION, ...]}
    -> {"op": "close", "engine": 1}
    <- {}

and, where the program says "stepping":

    -> {"op": "add", "engine": 1, "request": REQUEST}
    <- {}                                          or {"live": true}: that id is live, nothing was added
    -> {"op": "step", "engine": 1}
    <- {"events": [EVENT, ...]}
    -> {"op": "abort", "engine": 1, "request_id": "a"}
    <- {}
    -> {"op": "has_unfinished", "engine": 1}
    <- {"has_unfinished": true}

    REQUEST = {"request_id": "a", "prompt_token_ids": [1], "max_new_tokens": 4, "eos_token_ids": [0]}
    COMPLETION = {"request_id": "a", "token_ids": [3, 0], "finish_reason": "stop", "error": null}
    EVENT = {"request_id": "a", "token_id": 3, "finish_reason": null, "error": null}

`config` has every field of `batchproof.api.EngineConfig`. "capabilities", "error" and, in an event,
"finish_reason" may be absent. A hello may have "notes", sentences for a report. Any answer may be
{"error": "..."}: the engine raised. One process serves many engines, for a process each would cost
hours; we choose their numbers. `docs/piped_engines.md` tells it to people.

Conventions are the contract's own: the program decides what it refuses, an EOS is in the output, caps
and EOS ids are per request. There are no logits and no trace.
"""

from __future__ import annotations

import os
import shlex
import shutil
from functools import cache
from pathlib import Path

from batchproof.api import EngineFactory
from batchproof.errors import UsageError
from batchproof_engines.adapters.lines.engine import piped_factory
from batchproof_engines.adapters.lines.program import Program

__all__ = ["command_line"]


def command_line(command: str) -> EngineFactory:
    """The engine that is reached by running this command line, split as a POSIX shell would; no shell
    runs it. Raises `UsageError` if there is no such program. Nothing is started yet."""
    try:
        first, *rest = shlex.split(command)
    except ValueError as error:  # of shlex, or of unpacking nothing
        why = str(error) if command.strip() else "it is empty"
        raise UsageError(
            f"--engine 'cmd:{command}': no command line ({why}); give a program and its arguments"
        ) from error
    found = shutil.which(first)
    if found is None:
        raise UsageError(f"--engine 'cmd:{command}': {_why_not(first)}")
    return piped_factory(_program(command, (os.path.abspath(found), *rest), os.getcwd()))


@cache
def _program(command: str, words: tuple[str, ...], folder: str) -> Program:
    """One for all who name the same: they share its process."""
    return Program(f"cmd:{command}", words, folder)


def _why_not(first: str) -> str:
    if not os.path.dirname(first):
        return f"there is no program {first!r} on the PATH"
    if Path(first).exists():
        return f"{first!r} is not executable; chmod +x it, or name the program that runs it first"
    return f"there is no program {first!r}"
