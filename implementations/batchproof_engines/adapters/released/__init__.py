"""Engines released by others, each in a virtual environment of its own.

    --engine=openvino?prefix_caching=true
        -> .engines/openvino/bin/python openvino/program.py '{"prefix_caching": true}'
        -> JSON lines (`docs/piped_engines.md`)

Their pinned dependencies conflict with each other's and with ours, and a crash ends only the library's
own process. `batchproof install NAME` creates the environment; without it every test is skipped with
that reason. The option `python` names an interpreter of another one, as that of a checkout. A library
is a folder here: `engine.toml`, `requirements.txt`, and `program.py` unless the library is an HTTP
server. Programs share only the protocol with Batchproof; they serve the suite's checkpoint in a form
that the library reads, which they make once beside it.

    libraries.py    reads the folders, and installs
    builds.py       compiles what has no wheel, once for all checkouts
    serving.py      the far end of the pipe, for the programs
    server.py       starts a library that is a server, and restarts it after a failure
    conversion.py   converts a checkpoint for a server
"""

from __future__ import annotations

import inspect
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchproof.api import Engine, EngineConfig
from batchproof.errors import EngineMissingError
from batchproof.validation.values import require
from batchproof_engines.adapters.checkpoint import saved
from batchproof_engines.adapters.openai.engine import OpenAIEngine
from batchproof_engines.adapters.openai.options import Options, signature_with
from batchproof_engines.adapters.piped.engine import factory_of
from batchproof_engines.adapters.piped.process import kept_program
from batchproof_engines.adapters.released.conversion import converted
from batchproof_engines.adapters.released.libraries import (
    LIBRARIES,
    ReleasedLibrary,
    ServerCommand,
    interpreter,
)
from batchproof_engines.adapters.released.server import kept_server

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Of every server.
CLIENT_OPTIONS = "concurrency", "stream", "eos", "restored", "logprobs", "adapters", "n", "stop_texts"


@dataclass(frozen=True)
class ReleasedEngine:
    """The factory of a released engine; its options are those that `engine.toml` names."""

    name: str
    library: ReleasedLibrary

    @property
    def __signature__(self) -> inspect.Signature:
        """Model, config, and the options as keywords."""
        client = CLIENT_OPTIONS if self.library.server else ()
        # What is compiled is not in the environment of a `python`.
        place = ("release",) if self.library.build else ("python", "release")
        return signature_with(dict.fromkeys((*self.library.options, *place, *client)))

    @property
    def axes(self) -> Mapping[str, Any]:
        """Of a matrix, as `engine.toml` declares them."""
        return self.library.axes

    def __call__(
        self,
        model: PreTrainedModel,
        config: EngineConfig,
        python: str | None = None,
        release: str | None = None,
        **options: Any,
    ) -> Engine:
        """Builds an engine; options that are not given are left to the library.

        Raises `UnsupportedModelError` if the library is not installed or cannot serve the model, and
        `UsageError` for a `python` that is none, for wrong options of a server, or one that does not
        start.
        """
        if python is not None:
            rule = f"the path of a Python whose environment has {self.library.title}"
            require(shutil.which(str(python)) is not None, "python", repr(python), rule)
        python = interpreter(self.name, release) if python is None else str(python)
        if python is None:
            name = self.name if release is None else f"{self.name}=={release}"
            raise EngineMissingError(
                f"engine {name!r} is not installed here: `python -m batchproof install {name}`"
            )
        if self.library.server:
            return self._asked_over_http(self.library.server, python, release, model, config, options)
        given = {key: value for key, value in options.items() if value is not None}
        words = (python, str(self.library.program), json.dumps(given))
        engine: Any = factory_of(kept_program(self.name, words, os.getcwd()))(model, config)
        engine.notes = (*self.library.notes, *engine.notes)
        return engine

    def _asked_over_http(
        self,
        server: ServerCommand,
        python: str,
        release: str | None,
        model: PreTrainedModel,
        config: EngineConfig,
        options: dict[str, Any],
    ) -> Engine:
        folder = saved(model)
        client = {name: options[name] for name in CLIENT_OPTIONS if name in options}
        where = {"base_url": f"{self.name} starts it", "model": str(folder)}
        chosen = dict(server.client)
        for name, others in server.client_with.items():
            chosen |= others.get(str(options.get(name)), {})
        asked = Options.of({**where, **chosen, **client})
        flags = {name: flag.filled(name, options.get(name)) for name, flag in server.flags.items()}
        places = {"folder": str(folder), "home": str(self.library.folder), "python": python}
        places |= {"dtype": str(model.dtype).removeprefix("torch.")}
        places |= {"port": "{port}", "scratch": "{scratch}"}  # known when it starts
        build = self.library.build_of(release)
        if build is not None:
            places |= {"built": str(build.folder), "release": self.library.name_of(release)}
        if server.conversion:
            places["model"] = str(converted(server.conversion, folder, {**flags, **places}))
        split = {f"{{{name}}}": words.split() for name, words in flags.items()}
        command = (word for each in server.command for word in split.get(each, [each]))
        program, *arguments = (each.format(**flags, **places) for each in command)
        words = (str(Path(python).parent / program), *arguments)
        local = kept_server(self.name, words)
        engine = OpenAIEngine(local.running(), asked, model, config)
        version = (
            f"of {places['release']}" if build else _installed_version(python, self.library.package)
        )
        engine.release = f"{self.library.title} {version}"
        engine.notes = (*self.library.notes, *engine.notes)
        local.counted()  # those of earlier engines
        engine.count_others = local.counted
        return engine


ENGINES = {name: ReleasedEngine(name, library) for name, library in LIBRARIES.items()}


def __getattr__(name: str) -> ReleasedEngine:
    """Returns the factory of a released engine, as `pkg.mod:factory` names one."""
    if name not in ENGINES:
        raise AttributeError(f"no released engine {name!r}: there are {', '.join(ENGINES)}")
    return ENGINES[name]


@cache
def _installed_version(python: str, package: str) -> str:
    code = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
    ran = subprocess.run([python, "-c", code, package], capture_output=True, text=True, check=True)
    return ran.stdout.strip()
