"""The one benchmark of this release: a bimodal workload, timed, every timed answer checked.

Bimodal because that is what continuous batching exists for: many short answers beside a few long
ones, so that a static wave mostly waits for its longest row.
"""

from __future__ import annotations

import random

import torch

from harness.api import EngineConfig, Request
from harness.models.catalogue import ModelUnderTest
from harness.workloads import Workload

NUM_REQUESTS = 32
MAX_NUM_SEQS = 8
SHORT_CAP = (2, 8)
LONG_CAP = (40, 64)
LONG_SHARE = 0.25
PROMPT_LEN = (8, 48)


def bimodal_workload(subject: ModelUnderTest, seed: int = 0) -> Workload:
    """`NUM_REQUESTS` requests over `MAX_NUM_SEQS` slots, no EOS; reproducible from the seed."""
    rng = random.Random(seed)
    requests = []
    for index in range(NUM_REQUESTS):
        prompt = tuple(rng.randrange(subject.vocab_size) for _ in range(rng.randint(*PROMPT_LEN)))
        cap = rng.randint(*(LONG_CAP if rng.random() < LONG_SHARE else SHORT_CAP))
        requests.append(Request(f"r{index}", prompt, cap))
    return Workload(tuple(requests), EngineConfig(max_num_seqs=MAX_NUM_SEQS))


def synchronise(device: torch.device) -> None:
    """Wait until the device has done what it was given; timing anything else times the queue."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
