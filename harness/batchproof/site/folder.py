"""The folder of a site. Only what an earlier run wrote there is replaced or deleted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from batchproof.errors import UsageError
from batchproof.records.file_kinds import FileKind


@dataclass(frozen=True)
class SiteRecord:
    """The files of a site, relative to its folder, with slashes."""

    files: tuple[str, ...]


SITE = FileKind("list of a site's files", "batchproof.site", 1, SiteRecord)


LIST = "site.json"


def write_site(folder: Path, files: Mapping[str, bytes]) -> None:
    """Writes the files, by their names in the folder, and deletes those of an earlier site that are no
    more. Raises `UsageError` if the folder cannot be written, or holds such a file of another origin.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        before = SITE.read(folder / LIST).files if (folder / LIST).exists() else ()
        own = {name for name in before if (folder / name).resolve().is_relative_to(folder.resolve())}
        for name in files:
            if name not in own and (folder / name).exists():
                raise UsageError(
                    f"'{folder / name}' is not of an earlier site, and is not overwritten: delete it, "
                    f"or give another folder"
                )
        for name in sorted(own - files.keys()):
            _delete(folder, folder / name)
        SITE.write(SiteRecord(tuple(sorted(files))), folder / LIST)  # first: a run may be stopped
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
    except OSError as error:
        where = error.filename or folder
        raise UsageError(f"the site cannot be written to '{where}': {error.strerror}") from error


def _delete(folder: Path, path: Path) -> None:
    """Deletes the file, and the folders that it leaves empty."""
    path.unlink(missing_ok=True)
    for parent in path.parents:
        if parent == folder or not parent.is_dir() or any(parent.iterdir()):
            break
        parent.rmdir()
