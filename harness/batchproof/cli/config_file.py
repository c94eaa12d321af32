"""`batchproof.toml`: what flags would say otherwise.

The nearest one counts, from the current folder up to the root of the repository; outside a repository,
that of the current folder. Its paths are relative to the folder that it lies in.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from batchproof.cli.option_names import CONFIG, KEYS, SERVED
from batchproof.errors import UsageError
from batchproof.places import repository
from batchproof.run.engine_names import COMMAND_PREFIX
from batchproof.validation.toml_files import read_toml
from batchproof.validation.yaml_nodes import YamlNode

OWN = "batchproof.toml"
WHAT = "the configuration"
DEST, NONE = "batchproof_config", ""  # where pytest keeps the file named, and what means: none at all


class ConfigFile:
    """A configuration: its path as it is shown, the values of its keys, and the folder of the file."""

    def __init__(self, path: str, values: Mapping[str, YamlNode], folder: Path) -> None:
        self.path, self.values = path, values
        self._folder = folder

    @property
    def engines(self) -> list[str]:
        """Returns the engines that the file names, as they are named from the current folder."""
        return self.named_from_here(self.values["engine"].texts()) if "engine" in self.values else []

    def served_by(self, engines: Iterable[str]) -> list[str]:
        """Returns the models that these engines serve, if the file names no others."""
        is_about = not self.engines or set(engines) <= set(self.engines)
        is_said = is_about and SERVED in self.values
        return self.named_from_here(self.values[SERVED].texts()) if is_said else []

    def from_here(self, path: str) -> str:
        """Returns a path of the file as it is named from the current folder."""
        is_same = self._folder == Path.cwd() or Path(path).is_absolute()
        return path if is_same or not path else os.path.relpath(self._folder / path)

    def named_from_here(self, names: Sequence[str]) -> list[str]:
        """Returns names of engines, models or workloads. One is a path if it reads `path.py:factory`,
        or if it has a slash and such a file is there."""
        return [self._named_from_here(name) for name in names]

    def _named_from_here(self, name: str) -> str:
        module, ending, factory = name.partition(".py:")
        if name.startswith(COMMAND_PREFIX):
            return name
        if ending:
            return f"{self.from_here(f'{module}.py')}:{factory}"
        return self.from_here(name) if "/" in name and (self._folder / name).exists() else name


def read(path: Path) -> ConfigFile:
    """Returns a configuration. Raises `CaseError` if the file cannot be read, or has an unknown key."""
    root = read_toml(path, WHAT)
    return ConfigFile(root.path, root.mapping(KEYS), path.resolve().parent)


def find() -> ConfigFile | None:
    """Returns the configuration of the current folder, or None."""
    here = Path.cwd()
    folders = [here, *here.parents]
    paths = (folder / OWN for folder in folders[: folders.index(repository()) + 1])
    return next((read(path) for path in paths if path.is_file()), None)


def select_config(asked: str | None) -> ConfigFile | None:
    """Returns the configuration of `--config`, none with `--no-config`, else the one that is found."""
    if asked is None:
        return find()
    if asked == NONE:
        return None
    if not Path(asked).is_file():
        raise UsageError(f"{CONFIG} {asked!r} is no file")
    return read(Path(asked))


def required_engines(config: ConfigFile | None) -> list[str]:
    """Returns the engines of the configuration. Raises `UsageError` if there are none."""
    if config is None or not config.engines:
        raise UsageError(
            "no ENGINE is given: name one before all options, such as mine.py:Engine, or write "
            f'engine = "mine.py:Engine" into {config.path if config else OWN}'
        )
    return config.engines
