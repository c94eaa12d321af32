"""The contract in numbered sentences (`contract.yaml`), and the page that is made of them."""

from dataclasses import dataclass

from batchproof.places import ROOT
from batchproof.records.decode import decode
from batchproof.requirements.promises import Promise
from batchproof.validation.yaml_nodes import package_yaml

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
        proofs += [f"no test: {self.untested}"] if self.untested else []
        text = " ".join((self.must or self.may).split())
        return f"* **{self.id}** {text}" + (f"<br>{', '.join(proofs)}" if proofs else "")


def sentences() -> tuple[Sentence, ...]:
    """Returns all sentences, in the order of their numbers."""
    read = package_yaml("requirements/contract.yaml")
    return tuple(decode(Sentence, each) for each in read)


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
