"""Renders workloads as YAML cases, ready for a file in `cases/`: failures print them."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import yaml

from batchproof.api import EngineConfig
from batchproof.workload.sampling_values import plain_values
from batchproof.workload.workloads import Workload

NAME = "found-by-a-test"
# Place of a request (its call, and its index there) -> how it is expected to end.
Endings = Mapping[tuple[int, int], str]


class OnOneLine(dict[str, Any]):
    """A mapping that is written on one line."""


class CaseDumper(yaml.SafeDumper):
    """Writes values out each time, without anchors, and indents lists, as people do."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        super().increase_indent(flow)

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
        return True


CaseDumper.add_representer(
    OnOneLine,
    lambda dumper, pairs: dumper.represent_mapping("tag:yaml.org,2002:map", pairs, flow_style=True),
)


def as_yaml(
    workloads: Sequence[Workload],
    promise: str,
    name: str = NAME,
    why: str = "...",
    endings: Endings | None = None,
) -> str:
    """Returns the calls to one engine as one list item in the schema of `batchproof.cases.files`.

    Its author only adds why the case exists and, for requests that are bad or aborted on purpose,
    what is expected.
    """
    case: dict[str, Any] = {"name": name, "promise": promise, "why": why}
    if config := _config(workloads[0].config):
        case["config"] = config
    asked = [_requests(each, call, endings or {}) for call, each in enumerate(workloads)]
    case |= {"requests": asked[0]} if len(asked) == 1 else {"calls": asked}
    ids = {request.request_id for request in workloads[0].requests}
    unknown = [request_id for request_id, _ in workloads[0].aborts if request_id not in ids]
    if unknown and len(asked) == 1:  # the schema has them only there
        case["abort_unknown"] = OnOneLine({each: _aborts(workloads[0], each) for each in unknown})
    text: str = yaml.dump([case], Dumper=CaseDumper, sort_keys=False, allow_unicode=True, width=1 << 20)
    return text.rstrip("\n")


def _config(config: EngineConfig) -> OnOneLine:
    values = {each.name: (getattr(config, each.name), each.default) for each in fields(EngineConfig)}
    changed = {name: value for name, (value, default) in values.items() if value != default}
    return OnOneLine({name: value for name, value in changed.items() if name != "return_logits"})


def _requests(workload: Workload, call: int, endings: Endings) -> list[OnOneLine]:
    found = []
    seen: set[str] = set()
    for index, request in enumerate(workload.requests):
        values = OnOneLine(
            id=request.request_id,
            prompt=list(request.prompt_token_ids),
            max_new_tokens=request.max_new_tokens,
        )
        if request.eos_token_ids:
            values["eos"] = sorted(request.eos_token_ids)
        if request.sampling is not None:
            values["sampling"] = plain_values(request.sampling)
        if request.grammar is not None:
            values["grammar"] = {request.grammar.kind: request.grammar.text}
        if workload.arrivals is not None:
            values["arrive"] = workload.arrivals[index]
        # Of two requests with one id the first carries the aborts.
        if request.request_id not in seen and (steps := _aborts(workload, request.request_id)):
            values["abort"] = steps
        if (call, index) in endings:
            values["expect"] = {"finish": endings[call, index]}
        seen.add(request.request_id)
        found.append(values)
    return found


def _aborts(workload: Workload, request_id: str) -> list[int]:
    return [step for each, step in workload.aborts if each == request_id]
