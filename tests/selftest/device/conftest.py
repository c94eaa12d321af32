"""A process of its own, for what makes torch believe in another device."""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

IMPORTED = ["torch", "transformers.modeling_utils"]  # takes longer than most of what is asked here


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[ProcessPoolExecutor]:
    """One process for a module. It is forked from one that has imported torch, and has used it for
    nothing: a fork of this one might hang."""
    context = get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        yield pool
