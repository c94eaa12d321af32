"""The contract in numbered sentences (`contract.yaml`), and the page that is made of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from batchproof.places import PACKAGE, ROOT
from batchproof.records.decode import DecodeError, decode
from batchproof.requirements.promises import Promise
from batchproof.validation.yaml_nodes import YamlNode, read_yaml

SENTENCES = PACKAGE / "requirements" / "contract.yaml"
PAGE = ROOT / "docs" / "contract.md"
HEAD = """# May and must

What an engine must do, with the conformance tests that hold it to that, and what it may do, with the
honest oddities (`--engine odd:NAME`) that make use of it. No test demands what is left open: where the
event that a test is about is the engine's own choice, the summary says that it was not shown.
[Writing an engine](writing_an_engine.md) introduces the terms; the docstrings of
[`batchproof.api`](../harness/batchproof/api.py) have the details.

`python -m batchproof.requirements.contract` makes this page of
[contract.yaml](../harness/batchproof/requirements/contract.yaml)."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence: what an engine must do, or what it may."""

    id: str  # C-, the number of the promise, a dot, a number
    must: str = ""
    may: str = ""
    tests: tuple[str, ...] = ()  # module::function, of a `must`
    untested: str = ""  # why no test can hold to it
    odd: tuple[str, ...] = ()  # oddities that make use of a `may`

    @property
    def promise(self) -> Promise:
        return Promise[f"P{self.id.removeprefix('C-').partition('.')[0]}"]

    @property
    def line(self) -> str:
        """The sentence as a line of the page."""
        proofs = [f"`{each}`" for each in (*self.tests, *self.odd)]
        proof = f" *No test: {self.untested.strip()}.*" if self.untested else ""
        text = " ".join((self.must or self.may).split())
        return f"* **{self.id}** {text}{proof}" + (f"<br>{', '.join(proofs)}" if proofs else "")


def sentences() -> tuple[Sentence, ...]:
    """Returns all sentences. Raises `CaseError` naming the line of one that is wrong."""
    root = read_yaml(SENTENCES, "the contract", "a list", if_empty="[]")
    return tuple(_sentence(each) for each in root.items("a sentence"))


def _sentence(node: YamlNode) -> Sentence:
    try:
        sentence = decode(Sentence, node.value(), is_closed=True)
    except DecodeError as error:
        raise node.place.error(str(error)) from None
    for problem in _problems(sentence):
        raise node.place.error(f"{sentence.id} {problem}")
    return sentence


def _problems(sentence: Sentence) -> Iterator[str]:
    if bool(sentence.must) == bool(sentence.may):
        yield "has must and may, or neither: one of them"
    if sentence.must and bool(sentence.tests) == bool(sentence.untested):
        yield "names tests and why there are none, or neither: one of them"
    if (sentence.odd and sentence.must) or (sentence.tests and sentence.may):
        yield "names oddities for what it must, or tests for what it may"


def page() -> str:
    """Returns the page, must and may apart, by promise."""
    known, lines = sentences(), [HEAD]
    for verb in ("must", "may"):
        lines.append(f"\n## What an engine {verb} do")
        for promise in Promise:
            own = [each.line for each in known if each.promise is promise and getattr(each, verb)]
            lines += [f"\n### {promise}, {verb}\n", *own] if own else []
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
