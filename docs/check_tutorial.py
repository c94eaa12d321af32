"""Follows the tutorial as its reader would, and compares what happens with the page: some minutes.

It is followed from an empty folder, block by block:

    ```python     whose first line is `# name.py`: the file; and so for ```toml
    ```diff       whose first line is `Index: name.py`: a change of it. Hunks are parted by `@@`
    ```console    `$ command`, and what it prints, where `...` stands for anything

Other blocks are for readers alone. Seconds, and numbers of passed tests, which grow, are not compared.
"""

import doctest
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

TUTORIAL = Path(__file__).with_name("tutorial.md")
FENCE = re.compile(r"^```(python|toml|diff|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NEVER_TWICE = (
    (re.compile(r"\bin \d+\.\d+s( \([\d:]+\))?|^=+|=+$", re.M), ""),  # seconds; bars of what is left
    (re.compile(r"^(P\d+ [a-z ]+?) +~?\d+$", re.M), r"\1 passed"),  # a number of tests, which grows
    (re.compile(r"\b\d+ (?=passed|skipped)"), ""),
    (re.compile(r"(?<=rounding explains )\S+|(?<=: E )\S+(?=,)"), "E"),  # measured on the machine
)


class PageError(Exception):
    """The page cannot be followed: names the line of the block and what is wrong with it."""


@dataclass(frozen=True)
class Block:
    """A block of the page; `line` is that of its fence."""

    kind: str
    text: str
    line: int

    @property
    def name(self) -> str:
        """Returns the file that the block makes or changes. Raises `PageError` if it names none."""
        first = self.text.partition("\n")[0]
        match = re.fullmatch(r"(?:# |Index: )([\w.-]+)", first)
        if not match:
            raise PageError(f"line {self.line}: {first!r} names no file")
        return match[1]

    @property
    def commands(self) -> list[tuple[list[str], str]]:
        """Returns each command of a console with what it should print."""
        parts = re.split(r"^\$ (.*)\n", self.text, flags=re.MULTILINE)[1:]
        pairs = zip(parts[::2], parts[1::2], strict=True)
        return [(shlex.split(typed), printed) for typed, printed in pairs]


def blocks(page: str) -> Iterator[Block]:
    """Yields the blocks of a page that a reader follows, in order."""
    for match in FENCE.finditer(page):
        yield Block(match[1], match[2], page.count("\n", 0, match.start()) + 1)


def write(block: Block, folder: Path) -> Path:
    """Makes or changes a file as the block says, and returns it. Raises `PageError`."""
    file = folder / block.name
    if block.kind != "diff":
        file.write_text(block.text, encoding="utf-8")
        return file
    text = file.read_text(encoding="utf-8")
    hunks = block.text.partition("\n")[2]  # below the line that names the file
    for hunk in re.split(r"^@@.*\n", hunks, flags=re.MULTILINE):
        old = "".join(line[1:] for line in hunk.splitlines(keepends=True) if line[0] != "+")
        new = "".join(line[1:] for line in hunk.splitlines(keepends=True) if line[0] != "-")
        if text.count(old) != 1:
            raise PageError(f"line {block.line}: {text.count(old)} places in {file.name} are\n{old}")
        text = text.replace(old, new)
    file.write_text(text, encoding="utf-8")
    return file


def is_printed(wanted: str, printed: str) -> bool:
    """Returns whether the output is that of the page."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.OutputChecker().check_output(_settled(wanted), _settled(printed), flags)


def _settled(text: str) -> str:
    for pattern, instead in NEVER_TWICE:
        text = pattern.sub(instead, text)
    return text


def run(command: Sequence[str], folder: Path) -> str:
    """Runs a command of the page in the folder, and returns what it prints."""
    program = [sys.executable, "-m", "batchproof"] if command[0] == "batchproof" else [command[0]]
    environment = os.environ | {"COLUMNS": "80"}
    ran = subprocess.run(
        [*program, *command[1:]],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return ran.stdout


def follow(folder: Path) -> Iterator[str]:
    """Follows the tutorial in an empty folder, and yields what differs."""
    for block in blocks(TUTORIAL.read_text(encoding="utf-8")):
        if block.kind != "console":
            write(block, folder)
            continue
        for command, wanted in block.commands:
            printed = run(command, folder)
            place = f"line {block.line}: {shlex.join(command)}"
            if is_printed(wanted, printed):
                print(f"{place}: as printed")
            else:
                print(printed)
                yield f"{place}: differs"


def main() -> int:
    """Returns 0 if the page is right, else 1."""
    with tempfile.TemporaryDirectory() as folder:
        wrong = list(follow(Path(folder)))
    print(*wrong or ["every block is right"], sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
