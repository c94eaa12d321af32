"""Renders workloads as YAML cases, ready for a file in `cases/`: failures print them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields

import yaml

from batchproof.api import EngineConfig, Request
from batchproof.workload.sampling_values import plain_values
from batchproof.workload.workloads import Workload

# Place of a request (its call, and its index there) -> what is expected of it, in YAML.
Expectations = Mapping[tuple[int, int], str]


@dataclass(frozen=True)
class Pasted:
    """The calls to one engine, as one list item in the schema of `batchproof.cases.files`."""

    workloads: Sequence[Workload]
    promise: str
    name: str = "found-by-a-test"
    why: str = "..."
    expected: Expectations = field(default_factory=dict)
    events: Sequence[str] = ()  # that must show in the trace

    def __str__(self) -> str:
        lines = [f"- name: {self.name}", f"  promise: {self.promise}", f"  why: {self.why}"]
        config = _config(self.workloads[0].config)
        if config:
            lines.append(f"  config: {{{', '.join(config)}}}")
        is_one = len(self.workloads) == 1
        lines.append("  requests:" if is_one else "  calls:")
        unknown: list[str] = []
        for call in range(len(self.workloads)):
            requests, unknown = self._call(call)
            first = "    - " if is_one else "    - - "
            lines += [f"{first if i == 0 or is_one else '      - '}{r}" for i, r in enumerate(requests)]
        if unknown and is_one:  # the schema has them only there
            lines.append(f"  abort_unknown: {{{', '.join(unknown)}}}")
        if self.events:
            lines.append(f"  expect: {{{', '.join(f'{event}: true' for event in self.events)}}}")
        return "\n".join(lines)

    def _call(self, call: int) -> tuple[list[str], list[str]]:
        """Returns the call as YAML: its requests, and aborts of ids that no request has."""
        workload = self.workloads[call]
        aborts: dict[str, list[int]] = {}
        for request_id, step in workload.aborts:
            aborts.setdefault(request_id, []).append(step)
        requests = []
        for index, request in enumerate(workload.requests):
            arrival = None if workload.arrivals is None else workload.arrivals[index]
            # Of two requests with one id the first carries the aborts.
            steps = aborts.pop(request.request_id, [])
            requests.append(_request(request, arrival, steps, self.expected.get((call, index))))
        return requests, [f"{_text(name)}: {_steps(steps)}" for name, steps in aborts.items()]


def workload_as_yaml(workload: Workload, promise: str, name: str = Pasted.name) -> str:
    """Returns the workloads as a YAML case.

    Its author only adds why the case exists and, for requests that are bad or aborted on purpose,
    what is expected.
    """
    return str(Pasted([workload], promise, name))


def _config(config: EngineConfig) -> list[str]:
    return [
        f"{each.name}: {str(getattr(config, each.name)).lower()}"
        for each in fields(EngineConfig)
        if each.name != "return_logits" and getattr(config, each.name) != each.default
    ]


def _request(
    request: Request, arrival: int | None, aborts: Sequence[int], expected: str | None = None
) -> str:
    parts = [
        f"id: {_text(request.request_id)}",
        f"prompt: {_ids(request.prompt_token_ids)}",
        f"max_new_tokens: {request.max_new_tokens}",
    ]
    if request.eos_token_ids:
        parts.append(f"eos: {_ids(sorted(request.eos_token_ids))}")
    if request.sampling is not None:
        parts.append(f"sampling: {json.dumps(plain_values(request.sampling))}")  # which is YAML as well
    if arrival is not None:
        parts.append(f"arrive: {arrival}")
    if aborts:
        parts.append(f"abort: {_steps(aborts)}")
    if expected:
        parts.append(f"expect: {expected}")
    return f"{{{', '.join(parts)}}}"


def in_quotes(text: str) -> str:
    """Returns the text as YAML on one line, whatever it contains."""
    quoted: str = yaml.safe_dump(text, default_style='"', width=1 << 20, allow_unicode=True)
    return quoted.strip()


def _text(text: str) -> str:
    """Returns the text plain where YAML reads that back unchanged, else in quotes."""
    is_plain = re.fullmatch(r"[A-Za-z][\w-]*", text, re.ASCII) and yaml.safe_load(text) == text
    return text if is_plain else in_quotes(text)


def _steps(steps: Sequence[int]) -> str:
    return str(steps[0]) if len(steps) == 1 else _ids(steps)


def _ids(token_ids: Iterable[int]) -> str:
    return f"[{', '.join(map(str, token_ids))}]"
