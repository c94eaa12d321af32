"""The ladder: engines that do the same with ever less machinery. A part goes on with the first that
passes, so that a fault of one option does not cost it."""

from __future__ import annotations

from collections.abc import Mapping

Options = Mapping[str, str]

WITHOUT_COMPILER = {"compile": "false"}
WITHOUT_GRAPHS = {"graphs": "false"}
# Relative to the defaults on CUDA, the fastest first: which of the compiler and the graphs is at fault,
# then both; the last leaves out Triton as well, and all that is asynchronous.
RUNGS: tuple[Options, ...] = (
    {},
    WITHOUT_COMPILER,
    WITHOUT_GRAPHS,
    {**WITHOUT_GRAPHS, **WITHOUT_COMPILER},
    {**WITHOUT_GRAPHS, **WITHOUT_COMPILER, "backend": "blocks", "overlap": "false", "prepare": "false"},
)
# What is closest on a CPU to the defaults on CUDA.
DRY: Options = {"backend": "blocks", "compile": "eager"} | dict.fromkeys(
    ("graphs", "overlap", "prepare"), "true"
)
TESTS = "smoke or full_batch or newcomer_joins"  # few rows and many, prompts beside decodes
SECTION = "ladder"  # of the measures; the engine follows


def options_of(engine: str) -> Options:
    return dict(each.split("=", 1) for each in engine.partition("?")[2].split("&") if each)


def engine_with(engine: str, options: Options) -> str:
    """Returns the engine, as it is written after `--engine`, with options added or replaced."""
    named = {**options_of(engine), **options}
    typed = "&".join(f"{key}={value}" for key, value in named.items())
    return "?".join(filter(None, (engine.partition("?")[0], typed)))
