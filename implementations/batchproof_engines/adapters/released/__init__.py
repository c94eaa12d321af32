"""Engines released by others, each in a virtual environment of its own.

    --engine=openvino?prefix_caching=true
        -> .engines/openvino/bin/python programs/openvino_genai_cb.py '{"prefix_caching": true}'
        -> JSON lines (`docs/piped_engines.md`)

Their pinned dependencies conflict with each other's and with ours, and a crash ends only the library's
own process. `batchproof install NAME` creates the environment; without it every test is skipped with
that reason. The programs are scripts that share only the protocol with Batchproof; they serve the
suite's checkpoint in a form that the library reads, which they make once beside it.

    __init__.py     the factories
    libraries.py    which libraries there are, where and how they are installed
    programs/       a script for each library; its docstring states the library's conventions
    server.py       the one library that is an HTTP server: started here, and restarted after a failure
"""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from batchproof.api import Engine, EngineConfig, Limits
from batchproof.errors import UnsupportedModelError, UsageError
from batchproof_engines.adapters.checkpoint import saved
from batchproof_engines.adapters.openai import EOS, engine_at, require_choice
from batchproof_engines.adapters.openai.dialect import Dialect
from batchproof_engines.adapters.piped.engine import factory_of
from batchproof_engines.adapters.piped.program import kept_program
from batchproof_engines.adapters.released.libraries import LIBRARIES, interpreter
from batchproof_engines.adapters.released.server import LocalServer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SERVE_NOTES = (
    "It is asked over HTTP, each request on a connection of its own, 32 at once unless it is said "
    "otherwise; it computes in float32 with sdpa.",
    "It takes and gives text: prompts and answers are words of a tokenizer with one word a token. A "
    "token outside of the vocabulary has no word, so such a request is refused before it is sent.",
    "EOS ids of a request go in its generation_config, which its documentation gives for that.",
    "A connection that is cut cancels its request.",
)


def openvino(
    model: PreTrainedModel,
    config: EngineConfig,
    *,
    precision: str = "float32",
    kv_cache: str | None = None,
    prefix_caching: bool | None = None,
    dynamic_split_fuse: bool = True,
    num_kv_blocks: int | None = None,
    max_num_batched_tokens: int | None = None,
    abort: str = "cancel",
) -> Engine:
    """OpenVINO GenAI's continuous-batching pipeline on a CPU.

    `precision` and, where it differs, `kv_cache` are float32, or `default` for the library's own
    choice. `abort` is cancel, stop or drop. The other options override fields of `config`. Raises
    `UnsupportedModelError`.
    """
    return _built("openvino", **locals())


def ctranslate2(
    model: PreTrainedModel,
    config: EngineConfig,
    *,
    compute_type: str = "float32",
    include_prompt_in_result: bool = False,
    batch_type: str = "examples",
    stop_by: str = "callback",
    static_prompt: bool = False,
) -> Engine:
    """CTranslate2's generator on a CPU.

    All options but `stop_by` are the library's own. With `stop_by` a `callback` ends each row, or its
    `call` does, which then has one cap and one set of EOS ids. Raises `UnsupportedModelError`.
    """
    return _built("ctranslate2", **locals())


def onnxruntime(
    model: PreTrainedModel,
    config: EngineConfig,
    *,
    api: str = "engine",
    stop_by: str = "model",
    windowed_kv_cache: bool = True,
) -> Engine:
    """ONNX Runtime GenAI on a CPU.

    `api` is its request `engine` or the batched `generator`. With `stop_by`, a single EOS id is given
    to the `model`, or the `client` looks for all of them. `windowed_kv_cache` is the builder's option.
    Raises `UnsupportedModelError`.
    """
    return _built("onnxruntime", **locals())


def transformers_serve(
    model: PreTrainedModel,
    config: EngineConfig,
    *,
    block_size: int = 16,
    num_blocks: int = 256,
    max_batch_tokens: int = 256,
    concurrency: int = 32,
    stream: bool = False,
    eos: str = "generation_config",
) -> Engine:
    """`transformers serve` with continuous batching, on a CPU in float32: a server for each model.

    The first three options are its `--cb-...` flags; the others are as for `openai`. Raises
    `UsageError` for wrong options or a server that does not start, and `UnsupportedModelError` if it is
    not installed.
    """
    python = _interpreter("transformers-serve")
    flags = (block_size, num_blocks, max_batch_tokens)
    if any(type(each) is not int or each < 1 for each in (*flags, concurrency)):
        raise UsageError(
            "block_size, num_blocks, max_batch_tokens and concurrency must be whole numbers, at least 1"
        )
    require_choice(eos, "eos", EOS)
    server = _server(python, str(saved(model)), flags).running()
    vocab_size = Limits.of(model, config).vocab_size
    dialect = Dialect(str(saved(model)), vocab_size, "words", "words", eos, stream, {})
    engine = engine_at(server, dialect, model, config, concurrency)
    engine.release = f"transformers serve {_version(python, 'transformers')}"
    engine.notes = (*SERVE_NOTES, *engine.notes)
    return engine


def _built(
    name: str, model: PreTrainedModel, config: EngineConfig, **options: str | int | bool | None
) -> Engine:
    """Builds an engine of a piped program; options that are None are left to the program.

    Raises `UnsupportedModelError` if the library is not installed or cannot serve the model.
    """
    python = _interpreter(name)
    given = json.dumps({key: value for key, value in options.items() if value is not None})
    words = (python, str(LIBRARIES[name].program), given)
    return factory_of(kept_program(name, words, os.getcwd()))(model, config)


def _interpreter(name: str) -> str:
    python = interpreter(name)
    if python is None:
        raise UnsupportedModelError(
            f"engine {name!r} is not installed here: `python -m batchproof install {name}`"
        )
    return python


@cache
def _server(python: str, folder: str, flags: tuple[int, int, int]) -> LocalServer:
    """Returns one server for each model and choice of flags."""
    block_size, num_blocks, max_batch_tokens = map(str, flags)

    def command(port: int) -> list[str]:
        return [
            str(Path(python).with_name("transformers")),
            *("serve", folder, "--continuous-batching", "--device", "cpu", "--dtype", "float32"),
            *("--attn-implementation", "sdpa", "--host", "127.0.0.1", "--port", str(port)),
            *("--cb-block-size", block_size, "--cb-num-blocks", num_blocks),
            *("--cb-max-batch-tokens", max_batch_tokens),
        ]

    return LocalServer("transformers-serve", command)


@cache
def _version(python: str, package: str) -> str:
    code = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
    ran = subprocess.run([python, "-c", code, package], capture_output=True, text=True, check=True)
    return ran.stdout.strip()
