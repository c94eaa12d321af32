"""What `batchproof site` has written to a folder: these files it may replace and delete."""

from __future__ import annotations

from dataclasses import dataclass

from batchproof.records.file_kinds import FileKind


@dataclass(frozen=True)
class SiteRecord:
    """The files of a site, relative to its folder, with slashes."""

    files: tuple[str, ...]


SITE = FileKind("list of a site's files", "batchproof.site", 1, SiteRecord)
