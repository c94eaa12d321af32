"""Several GPUs: the one that was asked for is used, and all that are used are waited for. No machine
here has any, so `torch.cuda` is stood in for."""

import pytest
import torch

from batchproof.errors import UsageError
from batchproof.run.devices import synchronise
from tests.selftest.conftest import RunSuite

GIB = 1 << 30


@pytest.fixture
def three_gpus(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The engine works on 0 and 2; 1 is untouched."""
    reserved = {0: GIB, 1: 0, 2: GIB}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "memory_reserved", reserved.__getitem__)
    return monkeypatch


def test_the_device_that_was_asked_for_becomes_the_current_one(
    three_gpus: pytest.MonkeyPatch, run_suite: RunSuite
) -> None:
    """Else events and streams are made on the first, and times are those of an idle GPU."""

    current: list[torch.device] = []

    def set_device(device: torch.device) -> None:
        current.append(device)
        raise UsageError("far enough")

    three_gpus.setattr(torch.cuda, "set_device", set_device)
    run_suite("--device=cuda:1", test_none="def test_none(): ...\n")
    assert current == [torch.device("cuda:1")]


@pytest.mark.parametrize("name", ["cuda", "cuda:0"])
def test_all_gpus_in_use_are_waited_for_and_no_other(three_gpus: pytest.MonkeyPatch, name: str) -> None:
    """An engine may have its layers on several: the clock stopped when the first was done."""
    waited: list[int] = []
    index_of = {torch.device("cuda"): 0, torch.device("cuda:0"): 0, 2: 2}
    three_gpus.setattr(torch.cuda, "synchronize", lambda which: waited.append(index_of[which]))
    synchronise(torch.device(name))
    assert waited == [0, 2]
