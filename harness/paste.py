"""A workload as a YAML case: what a failure prints, ready for a file in `cases/`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields

from harness.api import EngineConfig
from harness.workloads import Workload


def workload_as_yaml(workload: Workload, promise: str, name: str = "found-by-property-test") -> str:
    """One list item in the schema of `harness/cases.py`; a reader must only add why it exists."""
    lines = [f"- name: {name}", f"  promise: {promise}", "  why: ..."]
    config = [
        f"{each.name}: {getattr(workload.config, each.name)}"
        for each in fields(EngineConfig)
        if each.name != "return_logits" and getattr(workload.config, each.name) != each.default
    ]
    if config:
        lines.append(f"  config: {{{', '.join(config)}}}")
    lines.append("  requests:")
    aborts = dict(workload.aborts)
    for index, request in enumerate(workload.requests):
        parts = [
            f"id: {request.request_id}",
            f"prompt: {_ids(request.prompt_token_ids)}",
            f"max_new_tokens: {request.max_new_tokens}",
        ]
        if request.eos_token_ids:
            parts.append(f"eos: {_ids(sorted(request.eos_token_ids))}")
        if workload.arrivals is not None:
            parts.append(f"arrive: {workload.arrivals[index]}")
        if request.request_id in aborts:
            parts.append(f"abort: {aborts[request.request_id]}")
        lines.append(f"    - {{{', '.join(parts)}}}")
    return "\n".join(lines)


def _ids(token_ids: Iterable[int]) -> str:
    return f"[{', '.join(map(str, token_ids))}]"
