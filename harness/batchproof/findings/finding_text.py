"""Renders findings: the headline, the evidence below it, the first line of a report."""

from collections.abc import Iterator

from batchproof.findings.causes import Cause, Diagnosis
from batchproof.findings.finding import Failure, Finding, thawed
from batchproof.workload.paste import NAME, as_yaml
from batchproof.workload.workloads import Workload


def headline(finding: Finding) -> str:
    """Returns one line: what was found and what should be."""
    return _first_words(finding)[0]


def _first_words(finding: Finding) -> list[str]:
    """Returns the lines of the headline: an engine's own message may have several."""
    return finding.rule.words[0].format_map(_values(finding)).splitlines() or [""]


def first_line(finding: Finding) -> str:
    return f"{finding.promise} is broken: {headline(finding)}"


def evidence(finding: Finding) -> Iterator[str]:
    yield from _first_words(finding)[1:]
    values = _values(finding)
    for template in finding.rule.words[1:]:
        if template.startswith("*"):
            lines = values[template[1:]] or []
            assert isinstance(lines, list), f"{template[1:]} is a fact of lines"
            yield from map(str, lines)
        else:
            yield template.format_map(values)
    if finding.appeared:
        yield f"it appeared {finding.appeared}"


def finding_text(finding: Finding) -> str:
    return "\n".join([first_line(finding), *(f"  {line}" for line in evidence(finding))])


def _values(finding: Finding) -> dict[str, object]:
    facts: dict[str, object] = {"request_id": finding.request_id, "step": finding.step}
    for name, kind in finding.rule.facts.items():
        value = thawed(finding.facts.get(name))
        facts[name] = float(value) if kind is float and isinstance(value, str) else _printable(value)
    return facts


def _printable(fact: object) -> object:
    """Returns texts with escapes for what a terminal or a file cannot show, such as NUL or half a
    surrogate pair: an engine's own words may hold anything."""
    if isinstance(fact, list):
        return [_printable(each) for each in fact]
    if not isinstance(fact, str) or fact.replace("\n", "").isprintable():
        return fact
    shown = (c if c == "\n" or c.isprintable() else c.encode("unicode_escape").decode() for c in fact)
    return "".join(shown)


WORKLOAD = "workload, to paste into a file of cases/:"
MOST_EARLIER = 24  # requests of the calls before, that are printed with it


def failure_text(failure: Failure, diagnosis: Diagnosis | None = None) -> str:
    """Returns first line, evidence, most likely cause, engine and model, and the workload as YAML."""
    return "\n".join(_lines(failure, diagnosis))


def _lines(failure: Failure, diagnosis: Diagnosis | None) -> Iterator[str]:
    yield first_line(failure.finding)
    yield from (f"  {line}" for line in _evidence(failure))
    repeats = diagnosis and (diagnosis.text, diagnosis.evidence) == (headline(failure.finding), ())
    if diagnosis is not None and not (diagnosis.cause is Cause.UNKNOWN and repeats):
        likely = f"most likely cause: {diagnosis.cause.word}"
        yield f"{'no cause found' if diagnosis.cause is Cause.UNKNOWN else likely}: {diagnosis.text}"
        yield from (f"  {line}" for line in diagnosis.evidence)
    subject = failure.subject
    model = f"{subject.model} ({subject.dtype}, {subject.device})"
    yield f"engine: {subject.engine}    model: {model}"
    *before, last = (each.workload for each in failure.scene.runs)
    before = [each for each in before if each.requests]
    num_before = sum(len(each.requests) for each in before)
    shown = [*before, last] if num_before <= MOST_EARLIER else [last]
    if any(each.adapters for each in (*before, last)):
        yield "workload: a case has no adapters; --repro=DIR saves it as data"
        return
    yield WORKLOAD
    name = f"{failure.case.name}-as-run" if failure.case else NAME
    yaml = as_yaml(shown, failure.promise.id, name)
    yield from (f"    {line}" for line in yaml.splitlines())
    if num_before > MOST_EARLIER:
        yield f"    # behind {len(before)} calls to the same engine; --repro=DIR saves them all"
    for each in shown:
        if each.has_lifecycle:
            yield f"    # which a case has no words for: {_lifecycle(each)}"


def _lifecycle(workload: Workload) -> str:
    done = [
        f"{each.kind}{f' to {each.weights}' if each.is_update else ''} before step {each.step}"
        for each in workload.interruptions
    ]
    return ", ".join([f"weights {workload.weights}", *done])


def _evidence(failure: Failure) -> Iterator[str]:
    yield from evidence(failure.finding)
    case = failure.case
    if case is not None:
        yield f"case {case.name} ({case.place}): {case.why}"
        yield from [case.link] if case.link else []
    yield from (f"also: {first_line(each)}" for each in failure.others)
    if not failure.is_repeatable:
        yield "run once more, the same workload gave another result"
