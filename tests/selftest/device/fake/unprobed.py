"""Builds a `paged` engine for a model whose answers are meaningless."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

from batchproof_engines import paged


@contextmanager
def unprobed(**parts: Any) -> Iterator[None]:
    """A context in which `paged` runs no trial batch; `parts` are classes for `build_unprobed`."""
    build = partial(paged.build_unprobed, **parts)
    checks = {"probe_logits": mock.DEFAULT, "refuse_undeclared": mock.DEFAULT}
    with mock.patch.multiple(paged, build_unprobed=build, **checks):
        yield
