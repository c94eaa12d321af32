"""Engines that other people released, each in a virtual environment of its own.

    --engine=openvino?prefix_caching=true
        -> .engines/openvino/bin/python programs/openvino_genai_cb.py '{"prefix_caching": true}'
        -> JSON lines (`docs/piped_engine.md`)

Their pins clash with each other's and with ours, and one that crashes takes its own process along and
nobody else's. `python -m harness install NAME` makes the environment; without it every test is skipped
and says so. The programs are scripts that know nothing of Batchproof but the protocol; they serve the
suite's checkpoint in a form that the library reads, which they make once beside it.

    __init__.py   the factories
    shelf.py      what there is, where it is installed, and how it gets there
    programs/     a script for each library; its docstring tells the library's conventions
"""

from __future__ import annotations

import json
import os
from functools import cache
from typing import TYPE_CHECKING

from harness.api import Engine, EngineConfig
from harness.errors import UnsupportedModelError
from implementations.adapters.lines.engine import piped_factory
from implementations.adapters.lines.program import Program
from implementations.adapters.released.shelf import SHELF, interpreter

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def openvino(
    model: PreTrainedModel,
    config: EngineConfig,
    *,
    precision: str = "float32",
    kv_cache: str | None = None,
    prefix_caching: bool | None = None,
    split_fuse: bool | None = None,
    num_kv_blocks: int | None = None,
    max_num_batched_tokens: int | None = None,
) -> Engine:
    """OpenVINO GenAI's continuous-batching pipeline on a CPU. `precision`, and `kv_cache` where that
    differs: float32, or `default` for the library's own choice. The others stand in for fields of
    `config`."""
    return _built(
        "openvino",
        model,
        config,
        precision=precision,
        kv_cache=kv_cache,
        prefix_caching=prefix_caching,
        split_fuse=split_fuse,
        num_kv_blocks=num_kv_blocks,
        max_num_batched_tokens=max_num_batched_tokens,
    )


def ctranslate2(
    model: PreTrainedModel, config: EngineConfig, *, compute_type: str = "float32"
) -> Engine:
    """CTranslate2's generator. `compute_type`: as the library names them."""
    return _built("ctranslate2", model, config, compute_type=compute_type)


def onnxruntime(model: PreTrainedModel, config: EngineConfig, *, api: str = "engine") -> Engine:
    """ONNX Runtime GenAI on a CPU. `api`: its request `engine`, or the batched `generator`."""
    return _built("onnxruntime", model, config, api=api)


def _built(
    name: str, model: PreTrainedModel, config: EngineConfig, **options: str | int | bool | None
) -> Engine:
    """What is None is left to the program. Raises `UnsupportedModelError` where the library is not
    installed or cannot serve the model."""
    python = interpreter(name)
    if python is None:
        raise UnsupportedModelError(
            f"engine {name!r} is not installed here: `python -m harness install {name}`"
        )
    given = json.dumps({key: value for key, value in options.items() if value is not None})
    return piped_factory(_program(name, python, given))(model, config)


@cache
def _program(name: str, python: str, options: str) -> Program:
    """One for all who ask for the same: they share its process."""
    return Program(name, (python, str(SHELF[name].program), options), os.getcwd())
