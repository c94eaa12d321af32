"""Reads the curated cases. The schema is closed: an unknown or missing key, a key given twice, a `true`
where a number belongs, or a name used twice is a `CaseError` with file and line."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from batchproof.api import Capability, EngineConfig, FinishReason, Grammar, SamplingParams
from batchproof.cases import schema
from batchproof.cases.schema import Case, RequestSpec
from batchproof.decoding.grammar import KINDS
from batchproof.errors import ConfigError
from batchproof.models.embedded import EMBEDDED
from batchproof.places import CASES
from batchproof.requirements.promises import Promise
from batchproof.validation.source_lines import SourceLine
from batchproof.validation.yaml_nodes import YamlNode, read_yaml, yaml_files
from batchproof.workload.sampling_values import NAMES, sampling_params

CASE_KEYS = (
    *("name", "promise", "why", "link", "needs", "models"),
    *("config", "requests", "calls", "abort_unknown", "expect"),
)
REQUEST_KEYS = (
    *("prompt", "max_new_tokens", "id", "eos", "arrive", "abort"),
    *("sampling", "grammar", "expect"),
)
CONFIG_KEYS = tuple(f.name for f in fields(EngineConfig) if f.name != "return_logits")
PROMPT_FORMS = "a text, a list of ids, {length, seed}, {token, length} or {context, seed}"
EOS_FORMS = "an id, 'ref[k]', 'ref[last]', 'prompt[k]' or 'prompt-only[k]'"
EOS_REF = re.compile(r"(ref|prompt|prompt-only)\[(\d+|last)\]")
URL = re.compile(r"https?://[^\s/]+/\S*")


def load_cases(directory: Path = CASES) -> tuple[Case, ...]:
    """Returns all cases of all `*.yaml` in the directory, file by file. Raises `CaseError`."""
    paths = yaml_files(directory, "case file")
    cases = tuple(case for path in paths for case in load_file(path))
    places: dict[str, SourceLine] = {}
    for case in cases:
        if case.name in places:
            raise case.place.error(f"case name {case.name!r} is taken by {places[case.name]}")
        places[case.name] = case.place
    return cases


def load_file(path: Path) -> tuple[Case, ...]:
    """Returns the cases of one file. Raises `CaseError`."""
    root = read_yaml(path, "a case file", "a list of cases")
    return tuple(_case(item) for item in root.entries())


def _case(item: YamlNode) -> Case:
    found = YamlNode(item.node, "a case", item.path).mapping(CASE_KEYS, ("name", "promise", "why"))
    name = found["name"].text()
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        raise found["name"].place.error(f"name {name!r} must be kebab-case, such as long-row-first")
    if not found["why"].text().strip():
        raise found["why"].place.error("why is empty, but must say which bug the case guards against")
    if ("requests" in found) == ("calls" in found):
        raise item.place.error(f"case {name!r} must have either the key 'requests' or the key 'calls'")
    if "abort_unknown" in found and "calls" in found:
        raise found["abort_unknown"].place.error("abort_unknown goes with 'requests', not with 'calls'")
    config = _config(found["config"]) if "config" in found else EngineConfig()
    expect = found["expect"].mapping((*schema.EVENTS, "max_steps")) if "expect" in found else {}
    if expect.keys() & {"acceptance", "rejection"} and config.num_speculative_tokens is None:
        rule = "acceptance and rejection need config: {num_speculative_tokens: ...}"
        raise found["expect"].place.error(rule)
    return Case(
        place=item.place,
        name=name,
        promise=Promise[found["promise"].choice([each.id for each in Promise])],
        why=" ".join(found["why"].text().split()),
        calls=_calls(found),
        link=_link(found["link"]) if "link" in found else None,
        declared_needs=tuple(
            Capability(each.choice(list(Capability))) for each in _list(found, "needs", "capability")
        ),
        models=tuple(each.choice(list(EMBEDDED)) for each in _list(found, "models", "model")),
        config=config,
        abort_unknown=_abort_unknown(found),
        events=frozenset(
            event for event in schema.EVENTS if event in expect and expect[event].boolean()
        ),
        max_steps=_at_least(expect, "max_steps", 1),
    )


def _link(item: YamlNode) -> str:
    link = item.text()
    if URL.fullmatch(link) is None:
        rule = "the http or https URL of a public thread"
        raise item.place.error(f"link is {link!r}, but must be {rule}")
    return link


def _list(found: dict[str, YamlNode], key: str, each: str) -> list[YamlNode]:
    return found[key].items(each) if key in found else []


def _at_least(found: dict[str, YamlNode], key: str, least: int) -> int | None:
    return found[key].integer(least) if key in found else None


def _config(item: YamlNode) -> EngineConfig:
    found: dict[str, Any] = {name: each.value() for name, each in item.mapping(CONFIG_KEYS).items()}
    try:
        return EngineConfig(**found)
    except ConfigError as error:
        raise item.place.error(str(error)) from None


def _abort_unknown(found: dict[str, YamlNode]) -> tuple[tuple[str, int], ...]:
    if "abort_unknown" not in found:
        return ()
    named = found["abort_unknown"].pairs().items()
    return tuple((request_id, step) for request_id, each in named for step in _aborts(each))


def _calls(found: dict[str, YamlNode]) -> tuple[schema.Call, ...]:
    lists = found["calls"].entries() if "calls" in found else [found["requests"]]
    calls: list[schema.Call] = []
    num_requests = 0
    for each in lists:
        entries = each.entries()
        calls.append(tuple(_request(e, f"r{num_requests + i}") for i, e in enumerate(entries)))
        _require_own_ids(calls[-1])
        num_requests += len(entries)
    return tuple(calls)


def _require_own_ids(call: schema.Call) -> None:
    """Raises `CaseError` if an id is surely live when a request comes that is expected to be good."""
    live: dict[str, RequestSpec] = {}
    for spec in call:
        first = live.get(spec.request_id)
        if spec.is_bad:
            continue
        if first is not None and first.arrive == spec.arrive and not first.aborts:
            raise spec.place.error(
                f"id {spec.request_id!r} is that of {first.place}, too: the engine must refuse the "
                f"later one, so it needs expect: {{finish: error}}"
            )
        live[spec.request_id] = spec


def _request(item: YamlNode, default_id: str) -> RequestSpec:
    request = YamlNode(item.node, "a request", item.path)
    found = request.mapping(REQUEST_KEYS, ("prompt", "max_new_tokens"))
    expect = found["expect"].mapping(("finish", "num_tokens")) if "expect" in found else {}
    finish = expect["finish"].choice(list(FinishReason)) if "finish" in expect else None
    if "num_tokens" in expect and finish == FinishReason.ERROR:
        raise expect["num_tokens"].place.error("a request that ends in an error has no tokens")
    return RequestSpec(
        place=item.place,
        request_id=found["id"].text() if "id" in found else default_id,
        prompt=_prompt(found["prompt"]),
        cap=_cap(found["max_new_tokens"]),
        eos=tuple(_eos(each) for each in _list(found, "eos", "an item of eos")),
        arrive=_at_least(found, "arrive", 0),
        aborts=_aborts(found["abort"]) if "abort" in found else (),
        sampling=_sampling(found["sampling"]) if "sampling" in found else None,
        grammar=_grammar(found["grammar"]) if "grammar" in found else None,
        finish=FinishReason(finish) if finish else None,
        num_tokens=_at_least(expect, "num_tokens", 0),
    )


def _sampling(item: YamlNode) -> SamplingParams:
    found = {name: each.value() for name, each in item.mapping(NAMES).items()}
    try:
        return sampling_params(found)
    except ValueError as error:
        raise item.place.error(str(error)) from None


def _grammar(item: YamlNode) -> Grammar:
    found = item.mapping(KINDS)
    if len(found) != 1:
        raise item.place.error(
            f"grammar has {len(found)} keys, but must have one of {', '.join(KINDS)}"
        )
    ((kind, given),) = found.items()
    return Grammar(kind, given.text())


def _prompt(item: YamlNode) -> schema.Prompt:
    if isinstance(item.node, yaml.SequenceNode):
        return tuple(each.integer() for each in item.items("a prompt token"))
    if isinstance(item.node, yaml.ScalarNode):
        if item.kind != "str":
            raise item.wrong(PROMPT_FORMS)
        return item.text()
    found = item.mapping(("length", "seed", "token", "context"))
    keys = set(found)
    if keys == {"length", "seed"}:
        return schema.RandomPrompt(found["length"].integer(at_least=1), found["seed"].integer())
    if keys == {"token", "length"}:
        return (found["token"].integer(),) * found["length"].integer(at_least=1)
    if keys == {"context", "seed"}:
        length = schema.BeyondContext(found["context"].integer())
        return schema.RandomPrompt(length, found["seed"].integer())
    raise item.place.error(f"prompt has the keys {', '.join(found)}, but must be {PROMPT_FORMS}")


def _cap(item: YamlNode) -> int | schema.BeyondContext:
    if isinstance(item.node, yaml.MappingNode):
        return schema.BeyondContext(item.mapping(("context",), ("context",))["context"].integer())
    return item.integer()


def _eos(item: YamlNode) -> int | schema.EosRef:
    if item.kind == "int":
        return item.integer()
    match = EOS_REF.fullmatch(item.text())
    if match is None or (match[2] == "last" and match[1] != "ref"):
        raise item.place.error(f"eos is {item.text()!r}, but must be {EOS_FORMS}")
    return schema.EosRef(match[1], None if match[2] == "last" else int(match[2]))


def _aborts(item: YamlNode) -> tuple[int, ...]:
    if isinstance(item.node, yaml.SequenceNode):
        return tuple(each.integer(at_least=0) for each in item.entries())
    return (item.integer(at_least=0),)
