"""Reads `BenchSpec`s from the YAML files of `cases/benchmarks/`, one workload each, and applies the
flags that change their size."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from batchproof.bench.spec import BenchSpec, Mixture, Range, SharedPrefix
from batchproof.errors import UsageError
from batchproof.places import CASES
from batchproof.validation.values import InvalidValueError, one_of, require
from batchproof.validation.yaml_nodes import YamlNode, read_yaml, yaml_files

BENCHMARKS_DIR = CASES / "benchmarks"


def workload_names() -> list[str]:
    """Returns the built-in workloads by the names of their files, without reading them."""
    return sorted(path.stem for path in BENCHMARKS_DIR.glob("*.yaml"))


def select_specs(names: Iterable[str], *, on_cpu: bool) -> tuple[BenchSpec, ...]:
    """Returns the workloads asked for, each once, in that order, in their CPU or GPU size: a name, a
    YAML file, or a folder of them; all built-in ones if none is asked for. Raises `UsageError`."""
    known = workload_names()
    found: dict[str, BenchSpec] = {}
    for name in list(names) or known:
        path = Path(name)
        if name in known:
            paths = [BENCHMARKS_DIR / f"{name}.yaml"]
        elif path.is_dir():
            paths = yaml_files(path, "workload")
        elif path.suffix == ".yaml" and path.is_file():
            paths = [path]
        else:
            files = ("a YAML file like theirs in cases/benchmarks", "a folder of such files")
            one_of("--workload", name, (*known, *files))
        for each in (load_spec(path, on_cpu=on_cpu) for path in paths):
            if found.setdefault(each.name, each) != each:
                raise UsageError(
                    f"--workload {name!r}: another workload is called {each.name!r} as well"
                )
    return tuple(found.values())


def load_spec(path: Path, *, on_cpu: bool) -> BenchSpec:
    """Returns the workload of one file. Raises `CaseError`, also for a mistake in the size not asked
    for."""
    root = read_yaml(path, "a workload", "a workload")
    found = root.mapping((*KEYS, "on_cpu"), (*REQUIRED, "on_cpu"))
    name = found["name"].text()
    if name != path.stem:
        raise found["name"].place.error(
            f"name is {name!r}, but must be that of the file, {path.stem!r}"
        )
    if not found["why"].text().strip():
        raise found["why"].place.error("why is empty, but must say what the workload shows")
    on_cpu_node = found.pop("on_cpu")
    changes = on_cpu_node.mapping([key for key in KEYS if key not in ("name", "why")])
    full, scaled = _spec(root, found), _spec(on_cpu_node, {**found, **changes})
    return scaled if on_cpu else full


def override(spec: BenchSpec, **sizes: int | str | None) -> BenchSpec:
    """Returns the workload with the values of the flags of the same names, `None` for one that is not
    given; `prompt_len` and `cap` are "LO:HI", or "N" for one value.

    A cap replaces a whole mixture. The token budget of a step grows if the longest prompt or the slots
    would exceed it. Raises `UsageError` naming flag, value and rule.
    """
    given: dict[str, Any] = {field: value for field, value in sizes.items() if value is not None}
    if "prompt_len" in given:
        given["prompt_len"] = _flag_range("--prompt-len", given["prompt_len"])
    if "cap" in given:
        given["cap"] = ((1.0, _flag_range("--cap", given["cap"])),)
    longest = given.get("prompt_len", spec.prompt_len).high
    budget = max(spec.max_num_batched_tokens, longest, given.get("slots", 1))
    try:
        return replace(spec, max_num_batched_tokens=budget, **given)
    except InvalidValueError as error:
        raise UsageError(f"--{error.name.replace('_', '-')} {error.complaint}") from None


def _flag_range(flag: str, text: str) -> Range:
    match = re.fullmatch(r"(\d+)(?::(\d+))?", text)
    require(match is not None, flag, repr(text), "LO:HI or N, in whole numbers of tokens")
    assert match is not None, "`require` has raised"
    return Range(int(match[1]), int(match[2] or match[1]))


def _spec(whole: YamlNode, found: Mapping[str, YamlNode]) -> BenchSpec:
    values = {key: READERS[key](item) for key, item in found.items()}
    try:
        return BenchSpec(**values)
    except InvalidValueError as error:
        raise found.get(error.name, whole).place.error(str(error)) from None


def _line(item: YamlNode) -> str:
    return " ".join(item.text().split())


def _range(item: YamlNode) -> Range:
    ends = [each.integer(at_least=1) for each in item.items(f"an end of {item.what}")]
    if len(ends) != 2 or ends[0] > ends[1]:
        raise item.place.error(f"{item.what} is {ends}, but must be [LOW, HIGH] with LOW <= HIGH")
    return Range(*ends)


def _mixture(item: YamlNode) -> Mixture:
    """Reads `[LOW, HIGH]`, or a list of `{share, range}`."""
    each = item.entries()
    if any(isinstance(part.node, yaml.ScalarNode) for part in each):
        return ((1.0, _range(item)),)
    parts = [YamlNode(p.node, "a part of cap", p.path).mapping(*[("share", "range")] * 2) for p in each]
    return tuple((_decimal(part["share"]), _range(part["range"])) for part in parts)


def _decimal(item: YamlNode) -> float:
    if item.kind not in ("int", "float") or not re.fullmatch(r"\d+(\.\d+)?", str(item.node.value)):
        raise item.wrong("a number that is not negative, such as 0.25")
    return float(item.node.value)


def _prefix(item: YamlNode) -> SharedPrefix:
    found = item.mapping(*[("length", "num_groups")] * 2)
    return SharedPrefix(*(found[key].integer(at_least=1) for key in ("length", "num_groups")))


READERS: dict[str, Callable[[YamlNode], Any]] = {
    "name": YamlNode.text,
    "why": _line,
    "num_requests": YamlNode.integer,
    "prompt_len": _range,
    "cap": _mixture,
    "slots": YamlNode.integer,
    "seed": YamlNode.integer,
    "shared_prefix": _prefix,
    "max_num_batched_tokens": YamlNode.integer,
    "prefix_caching": YamlNode.boolean,
}
KEYS = tuple(READERS)
REQUIRED = ("name", "why", "num_requests", "prompt_len", "cap", "slots", "seed")
