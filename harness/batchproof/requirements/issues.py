"""What is known of an engine's failures: the cause, the public thread, whether it is meant to be.

The suite sees that an answer is wrong; why, and whether the documentation says so, a person finds out.
That is written down once, in `results/engines/findings.yaml`, a list of

    - engine: openvino-genai 2026   how the release's name and version begin
      unless: [guarded=true]        options under which it cannot be; may be left out
      only: [ep=on]                 options without which it cannot be; may be left out
      title: Cap 0 means no limit   a sentence, the heading in the verdict
      kind: documented              or defect
      matches:                      a failure that fits one of these; []: it was found without the suite
        - rule: refused             id of the check that failed
          promise: P12              that is broken
          test: test_a_bad_request_fails_alone
          parameters: {kind: cap of zero}
          case: cap-of-zero         a curated case
          model: gpt2-hash
          facts: {shortest_prompt: 1, has_drafts: true, has_draws: true}
      cause: ...                    why it happens, with its source
      threads: [https://...]        where it is known in public; may be left out
      scripts: [reproductions/x.py] show it with the library alone; may be left out
      reports: [x]                  of a defect: its reports to the maintainers (`reports.yaml`)

All that a match names must hold; a list is a choice. Names and facts are those of the failure's record,
never its words. A failure belongs to the first issue of its engine that fits. What is documented breaks
no promise: the verdict shows it as a convention that differs.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from batchproof.places import ROOT
from batchproof.records.decode import DecodeError, decode
from batchproof.records.trial_record import TrialRecord
from batchproof.records.verdict import IssueKind, IssueRecord
from batchproof.validation.yaml_nodes import YamlNode, read_yaml

DEFAULT_ISSUES = ROOT / "results" / "engines" / "findings.yaml"
Choice = str | tuple[str, ...] | None


@dataclass(frozen=True)
class FailurePattern:
    """What a failure must be like. None, or an empty mapping, allows anything."""

    promise: Choice = None
    rule: Choice = None
    test: Choice = None  # a test function
    case: Choice = None
    model: Choice = None
    parameters: Mapping[str, object] = field(default_factory=dict)
    facts: Mapping[str, object] = field(default_factory=dict)

    def fits(self, record: TrialRecord) -> bool:
        failure = record.failure
        if failure is None:
            return False
        found = {"promise": failure.promise, "rule": failure.rule, "case": failure.case}
        found |= {"test": record.function, "model": record.model}
        wanted = {name: getattr(self, name) for name in found}
        return (
            _all_hold({name: each for name, each in wanted.items() if each is not None}, found)
            and _all_hold(self.parameters, record.parameters)
            and _all_hold(self.facts, failure.facts)
        )


def _all_hold(wanted: Mapping[str, object], found: Mapping[str, object]) -> bool:
    return all(name in found and _holds(value, found[name]) for name, value in wanted.items())


def _holds(wanted: object, found: object) -> bool:
    """Returns whether a value equals the wanted one, or is in the wanted list."""
    return found in wanted if isinstance(wanted, list | tuple) else found == wanted


@dataclass(frozen=True)
class KnownIssue:
    """An entry of the file. `engine` is how names of releases begin."""

    engine: str
    title: str
    kind: IssueKind
    matches: tuple[FailurePattern, ...]
    cause: str
    threads: tuple[str, ...] = ()
    scripts: tuple[str, ...] = ()
    reports: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    only: tuple[str, ...] = ()

    def is_of(self, release: str | None, engine: str) -> bool:
        """Returns whether this may be met in that release. `engine` is the name that was judged, with
        its options."""
        options = engine.partition("?")[2].split("&")
        is_named = release is not None and release.startswith(self.engine)
        return is_named and not {*self.unless} & {*options} and {*self.only} <= {*options}

    def fits(self, record: TrialRecord) -> bool:
        """Returns whether one of the patterns fits the failure of a test record."""
        return any(pattern.fits(record) for pattern in self.matches)

    @property
    def record(self) -> IssueRecord:
        """Returns the part of the issue that a verdict shows."""
        return IssueRecord(self.title, self.kind, self.cause.strip(), self.threads, self.scripts)


def issue_of(record: TrialRecord, issues: Iterable[KnownIssue]) -> KnownIssue | None:
    """Returns the first of the issues that fits the failure."""
    return next((each for each in issues if each.fits(record)), None)


def read_issues(path: Path) -> tuple[KnownIssue, ...]:
    """Returns the issues of the file; none if it is the default one and not there. Raises `CaseError`
    naming the entry and what is wrong with it."""
    if path == DEFAULT_ISSUES and not path.exists():
        return ()
    root = read_yaml(path, "the file of findings", "a list", if_empty="[]")
    entries = enumerate(root.items("an entry"), start=1)
    return tuple(_issue(replace(each, what=f"entry {i}"), path.parent) for i, each in entries)


def _issue(node: YamlNode, folder: Path) -> KnownIssue:
    try:
        issue = decode(KnownIssue, node.value(), is_closed=True)
    except DecodeError as error:
        raise node.place.error(f"{node.what}: {error}") from None
    for problem in _problems(issue, folder):
        raise node.place.error(f"{node.what}: {problem}")
    return issue


def _problems(issue: KnownIssue, folder: Path) -> Iterator[str]:
    for name in ("engine", "title", "cause"):
        if not getattr(issue, name).strip():
            yield f"{name} is empty"
    for pattern in issue.matches:
        if pattern == FailurePattern():
            yield "a match that names nothing fits every failure"
    for script in issue.scripts:
        if not (folder / script).is_file():
            yield f"there is no script {folder / script}"
