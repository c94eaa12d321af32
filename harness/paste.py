"""A workload as a YAML case: what a failure prints, ready for a file in `cases/`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import fields

import yaml

from harness.api import EngineConfig, Request
from harness.workloads import Workload


def workload_as_yaml(workload: Workload, promise: str, name: str = "found-by-property-test") -> str:
    """One list item in the schema of `harness/cases.py`; a reader must only say why it exists, and,
    for requests that are bad or aborted on purpose, what to expect of them."""
    lines = [f"- name: {name}", f"  promise: {promise}", "  why: ..."]
    config = [
        f"{each.name}: {getattr(workload.config, each.name)}"
        for each in fields(EngineConfig)
        if each.name != "return_logits" and getattr(workload.config, each.name) != each.default
    ]
    if config:
        lines.append(f"  config: {{{', '.join(config)}}}")
    aborts: dict[str, list[int]] = {}
    for request_id, step in workload.aborts:
        aborts.setdefault(request_id, []).append(step)
    lines.append("  requests:")
    for index, request in enumerate(workload.requests):
        arrival = None if workload.arrivals is None else workload.arrivals[index]
        # Of two requests with one id the first carries the aborts.
        lines.append(f"    - {_request(request, arrival, aborts.pop(request.request_id, []))}")
    unknown = [f"{_text(request_id)}: {_steps(steps)}" for request_id, steps in aborts.items()]
    if unknown:
        lines.append(f"  abort_unknown: {{{', '.join(unknown)}}}")
    return "\n".join(lines)


def _request(request: Request, arrival: int | None, aborts: Sequence[int]) -> str:
    parts = [
        f"id: {_text(request.request_id)}",
        f"prompt: {_ids(request.prompt_token_ids)}",
        f"max_new_tokens: {request.max_new_tokens}",
    ]
    if request.eos_token_ids:
        parts.append(f"eos: {_ids(sorted(request.eos_token_ids))}")
    if arrival is not None:
        parts.append(f"arrive: {arrival}")
    if aborts:
        parts.append(f"abort: {_steps(aborts)}")
    return f"{{{', '.join(parts)}}}"


def _text(text: str) -> str:
    """As it is where YAML reads that back as the same text, else in quotes."""
    is_plain = re.fullmatch(r"[A-Za-z][\w-]*", text, re.ASCII) and yaml.safe_load(text) == text
    quoted: str = yaml.safe_dump(text, default_style='"', width=1 << 20, allow_unicode=True)
    return text if is_plain else quoted.strip()


def _steps(steps: Sequence[int]) -> str:
    return str(steps[0]) if len(steps) == 1 else _ids(steps)


def _ids(token_ids: Iterable[int]) -> str:
    return f"[{', '.join(map(str, token_ids))}]"
