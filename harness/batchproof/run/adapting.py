"""Brings an engine to the adapters that a workload names."""

import os
import weakref
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory, mkdtemp

from batchproof.api import AdapterEngine
from batchproof.models.catalogue import ModelUnderTest
from batchproof.workload.workloads import Workload


class LoadedAdapters:
    """The adapters of one engine: the number of each by name. Each has a folder of its own, or each
    name has one, which is written anew for other weights, as somebody does who trains."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._root: Path | None = None  # until the engine is forgotten

    def bring(self, engine: AdapterEngine, subject: ModelUnderTest, workload: Workload) -> None:
        """Makes the engine have the adapters of the workload and no others. Raises what it raises."""
        wanted = dict(workload.adapters)
        for name in self._numbers.keys() - wanted.keys():
            engine.unload_adapter(name)
            del self._numbers[name]
        for name, number in wanted.items():
            if self._numbers.get(name) != number:
                folder = name if workload.adapters_in_place else f"{name}-{number}"
                engine.load_adapter(name, self._written(subject, folder, number))
                self._numbers[name] = number

    def _written(self, subject: ModelUnderTest, place: str, number: int) -> str:
        if self._root is None:
            self._root = Path(mkdtemp(prefix="batchproof-adapters-"))
            weakref.finalize(self, rmtree, self._root, ignore_errors=True)
        folder = self._root / place
        folder.mkdir(exist_ok=True)
        with TemporaryDirectory(dir=self._root) as scratch:
            subject.save_adapter(Path(scratch), number)
            for file in Path(scratch).iterdir():  # new files: an engine may have mapped the old ones
                os.replace(file, folder / file.name)
        return str(folder)
