"""Builds a `paged` engine for a model whose answers are meaningless."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

from transformers import PreTrainedModel

import batchproof_paged as paged
from batchproof_paged.feeding import Found
from batchproof_paged.options import PagedOptions


@contextmanager
def unprobed(**parts: Any) -> Iterator[None]:
    """A context in which `paged` runs no trial batch; `parts` are classes for `build_unprobed`."""
    build = partial(paged.build_unprobed, **parts)
    with mock.patch.multiple(paged, build_unprobed=build, options_for=_as_asked):
        yield


def _as_asked(model: PreTrainedModel, asked: PagedOptions, _build: object) -> Found:
    return Found(asked.resolved(model.device))
