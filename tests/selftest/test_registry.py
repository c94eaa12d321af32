"""`--engine` from text to factory: every wrong input is one clear sentence."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batchproof.api import Capability, EngineConfig, Limits, Request
from batchproof.errors import ConfigError, UsageError
from batchproof.run.capabilities import offer_of
from batchproof.run.engine_names import parse_options
from batchproof.run.registry import resolve_engine


def test_a_factory_is_found_in_a_module_and_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def factory(model, config, depth=1):\n    return (model, config, depth)\n"
    )
    spec = resolve_engine(f"{tmp_path}/mine.py:factory?depth=1e6")
    assert spec.factory("model", "config") == ("model", "config", 1e6)  # type: ignore[arg-type,comparison-overlap]
    assert (
        resolve_engine("batchproof_engines.static:static").factory is resolve_engine("static").factory
    )


def files(folder: Path, **sources: str) -> Path:
    folder.mkdir()
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(source)
    return folder


def test_two_engine_files_of_one_name_are_two_modules_and_neither_runs_the_helper_of_the_other(
    tmp_path: Path,
) -> None:
    """The second of two engines, such as before and after a change, was once taken for the first, or
    ran the first's helper."""
    helper = "helper_of_two_engines"
    alone = {"mine": "def make(model, config): return 'alone'"}
    helped = {
        "mine": f"import {helper}\ndef make(model, config): return {helper}.NAME",
        helper: "NAME = 'helped'",
    }
    for name, sources in (("alone", alone), ("helped", helped)):
        spec = resolve_engine(f"{files(tmp_path / name, **sources)}/mine.py:make")
        assert spec.factory("model", "config") == name  # type: ignore[arg-type,comparison-overlap]
    with pytest.raises(UsageError, match=f"each hold a module '{helper}'"):
        resolve_engine(f"{files(tmp_path / 'after', **helped)}/mine.py:make")


def test_the_value_of_an_option_is_a_json_scalar_or_a_text() -> None:
    """YAML 1.1 once read `no` as false, 12:30 as 750 and 017 as 15."""
    query = "a=no&b=12:30&c=017&d=true&e=1e6&f=null&g=http://x:1/v1&h=[1]&i=-2.5&j="
    texts = {"a": "no", "b": "12:30", "c": "017", "g": "http://x:1/v1", "h": "[1]", "j": ""}
    assert parse_options("x", query) == texts | {"d": True, "e": 1e6, "f": None, "i": -2.5}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nonesuch", ["'nonesuch'", "reference, static, ragged", "cmd:COMMAND LINE"]),
        ("cmd:nonesuch -x", ["'cmd:nonesuch -x'", "no program 'nonesuch' on the PATH"]),
        ("cmd:{tmp}", ["is not executable"]),
        ("batchproof_engines.static:nonesuch", ["no attribute 'nonesuch'", "StaticEngine"]),
        ("ragged?depth=True", ["option 'depth' is 'True'; write 'true'"]),
        ("{tmp}/broken.py:factory", ["ZeroDivisionError"]),
        ("{tmp}/none.py:option?size=1&size=2", ["'size' is given twice"]),
        ("{tmp}/none.py:option?width=1", ["unknown option 'width'", "takes size"]),
    ],
)
def test_wrong_engines_are_refused_in_one_sentence(text: str, words: list[str], tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("1 / 0\n")
    (tmp_path / "none.py").write_text("def factory(): ...\ndef option(model, config, size): ...\n")
    with pytest.raises(UsageError) as caught:
        resolve_engine(text.format(tmp=tmp_path))
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


class Silent:
    """Says nothing about what it can do."""

    trace = ()

    def generate(self, requests):
        from batchproof.api import Completion, FinishReason

        return [Completion(r.request_id, (0,), FinishReason.LENGTH) for r in requests]


async def awaited():
    return Silent()


def engine(**members: Any) -> Any:
    """Returns the class of an engine with these members besides `generate` and `trace`."""
    return type("Engine", (Silent,), members)


def declaring(*names: str) -> Any:
    return engine(capabilities=frozenset(names))


def method(*_: object) -> None: ...


STEPS = {"add": method, "step": method}
DELAYED = STEPS | {"abort": method, "has_unfinished": False}


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs is 0, but must be at least 1"),
        ({"block_size": "16"}, "block_size is '16', but must be a whole number"),
        ({"prefix_caching": "yes"}, "prefix_caching is 'yes', but must be True or False"),
        ({"draft_agreement": 0.5}, "draft_agreement is 0.5, which needs num_speculative_tokens"),
    ],
)
def test_a_limit_that_cannot_be_is_refused(limits: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"EngineConfig.{words}")):
        EngineConfig(**limits)


@pytest.mark.parametrize("request_", [Request("a", (1, 2.5), 2), Request("a", (1,), 2.5)])
def test_a_request_of_no_whole_numbers_is_refused(request_: Request) -> None:
    refusal = Limits(256, 64).refusal(request_)
    assert refusal is not None
    assert "is no whole number, but token ids and caps must be" in refusal


def test_capabilities_are_read_off_the_methods_of_an_engine_that_says_nothing() -> None:
    assert offer_of("silent", lambda _: Silent())[0] == {Capability.TRACING}
    offer_of("no delay", lambda _: engine(scheduling_delay=0)())


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        (engine(**STEPS), "lacks abort, has_unfinished"),
        (declaring("steppping"), "declares 'steppping', which is no capability"),
        (lambda: Silent, "its factory returned the class Silent, but must return an instance"),
        (awaited, r"its factory is a coroutine \(async def\)"),
        (
            engine(**STEPS, abort=method, has_unfinished=method),
            "has_unfinished must be a property, but is a method",
        ),
        (declaring("scheduling", "tracing"), "declares scheduling, which needs stepping"),
        (engine(**DELAYED, scheduling_delay=True), "scheduling_delay is True, but must be 0 or 1: the"),
        # One that cannot be read is no delay of zero.
        (engine(scheduling_delay=property(lambda _: 1 // 0)), "scheduling_delay raised ZeroDivision"),
        (engine(block_size_multiple=0), "block_size_multiple is 0, but must be a whole number, at"),
        (
            engine(**DELAYED, capabilities={"stepping"}, scheduling_delay=1),
            "a scheduling_delay of 1, which needs scheduling",
        ),
    ],
)
def test_half_a_capability_is_refused(factory: Callable[[], Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        offer_of("engine", lambda _: factory())
