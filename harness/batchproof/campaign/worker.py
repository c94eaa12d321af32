"""What a worker process keeps from task to task."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from batchproof.campaign.findings import Findings
from batchproof.campaign.shared_laboratory import SharedLaboratory
from batchproof.models.catalogue import resolve_dtype

BROKEN_OFF = (pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR)


@cache
def laboratory(dtype_name: str, time_limit_s: float) -> SharedLaboratory:
    """One a process. Workers share the cores, so each makes do with one thread."""
    torch.set_num_threads(1)
    return SharedLaboratory(torch.device("cpu"), resolve_dtype(dtype_name), time_limit_s)


def own_failures(findings: Findings) -> tuple[str, ...]:
    """Where the harness broke instead of telling what the engine did."""
    if findings.exit_status in BROKEN_OFF:
        return (f"pytest ended with status {findings.exit_status}: {findings.output[-2000:]}",)
    return tuple(f"{each.test}: {each.report}" for each in findings.catches if each.broken is None)
