"""Renders findings: the headline, the evidence below it, the first line of a report."""

from __future__ import annotations

from collections.abc import Iterator

from batchproof.findings.finding import Finding, thawed


def headline(finding: Finding) -> str:
    """Returns one line: what was found and what should be."""
    return finding.rule.words[0].format_map(_values(finding))


def first_line(finding: Finding) -> str:
    """Returns the promise and the headline."""
    return f"{finding.promise} is broken: {headline(finding)}"


def evidence(finding: Finding) -> Iterator[str]:
    """Yields the lines below the headline."""
    values = _values(finding)
    for template in finding.rule.words[1:]:
        if template.startswith("*"):
            lines = values[template[1:]]
            assert isinstance(lines, list), f"{template[1:]} is a fact of lines"
            yield from map(str, lines)
        else:
            yield template.format_map(values)
    if finding.appeared:
        yield f"it appeared {finding.appeared}"


def finding_text(finding: Finding) -> str:
    """Returns the first line and the evidence."""
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
