"""Tables of commands: how the one that is asked for is found, parsed and run.

A command is a module with `add_arguments(parser)` and `run(arguments) -> int`. Only the module of the
command asked for is imported, since most of them bring torch along.
"""

import argparse
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from shlex import quote
from typing import NoReturn

from batchproof.cli.option_names import OPTIONS
from batchproof.errors import UsageError
from batchproof.validation.values import near


@dataclass(frozen=True, slots=True)
class Command:
    """Names the module of a command, says what it is for, and holds the commands below it."""

    module: str
    purpose: str
    below: Mapping[str, "Command"] = field(default_factory=dict)


class CommandParser(argparse.ArgumentParser):
    """Reports wrong arguments in one sentence instead of a page of usage."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see `{self.prog} --help`)")

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """Reports arguments that it does not know, with the options that a misspelt one may mean."""
        flag = unknown[0].partition("=")[0]
        if not flag.startswith("--"):
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        options = self._option_string_actions
        if "--pytest" in options and flag in OPTIONS:
            raise UsageError(f"{flag} is an option of pytest: --pytest={quote(unknown[0])}")
        known = near(flag, options, f"`{self.prog} --help`")
        raise UsageError(f"{flag} is no option; {known}")


def run_command(
    commands: Mapping[str, Command],
    argv: Sequence[str],
    prog: str,
    purpose: str,
    epilog: str = "",
    version: str = "",
) -> int:
    """Runs the command that `argv` begins with and returns its exit code. Raises `UsageError` if it is
    unknown or its arguments are wrong. With a `version` there is a flag that prints it."""
    name = argv[0] if argv else ""
    command = commands.get(name)
    if command is not None and argv[1:2] and argv[1] in command.below:
        return run_command(command.below, argv[1:], f"{prog} {name}", command.purpose)
    if command is None and name and not name.startswith("-"):
        raise UsageError(f"{name!r} is no command; {near(name, commands)} (see `{prog} --help`)")
    parser = CommandParser(prog=prog, description=purpose, epilog=epilog)
    if version:
        parser.add_argument("--version", action="version", version=f"{prog} {version}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for each, known in commands.items():
        subparser = subparsers.add_parser(
            each,
            help=known.purpose,
            description=known.purpose,
            epilog=_below(prog, each, known),
            allow_abbrev=False,
        )
        if each == name:
            importlib.import_module(known.module).add_arguments(subparser)
    arguments, unknown = parser.parse_known_args(argv)
    if unknown and "arguments" not in arguments:
        subparsers.choices[name].refuse(unknown)
    if unknown:  # what comes before the first argument that is no option
        arguments.arguments = [*unknown, *arguments.arguments]
    exit_code: int = importlib.import_module(commands[arguments.command].module).run(arguments)
    return exit_code


def _below(prog: str, name: str, command: Command) -> str | None:
    each = [f"`{prog} {name} {below}`: {found.purpose}" for below, found in command.below.items()]
    return f"See also {'; '.join(each)}." if each else None
