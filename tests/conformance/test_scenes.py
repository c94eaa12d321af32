"""Every two features meet: slots, chunks, shared prefixes, small pools, drafts, arrivals, aborts, and
what a request asks for: parameters, logprobs, ends.

A covering design chooses the workloads, and `--hypothesis-seed` the design. Two features that the
engine's capabilities allow and that were never shown to meet are a failure, as far as a trace tells.
With the profile thorough, every three meet. Where many models are tested, the quick ones get the whole
design, and each of the others another part of it.
"""

import pytest
from hypothesis import settings

from batchproof.api import Capability
from batchproof.models.embedded import QUICK_STATE_MODEL
from batchproof.plugin.selection import SELECTION
from batchproof.plugin.trials import VARIED
from batchproof.run.meeting import Meetings
from batchproof.run.trial import Trial

EXAMPLES = settings().max_examples
PART = 0.25
SHARE = 1.0 if EXAMPLES >= 10 else 0.1  # of the design; less for built-in engines
WHOLE = {*VARIED["quick_models"], QUICK_STATE_MODEL}  # models
STRENGTH = 3 if EXAMPLES >= 100 else 2


@pytest.mark.promise(id="P1")
@pytest.mark.quick_models
@pytest.mark.also_on(QUICK_STATE_MODEL)
def test_every_two_features_meet(trial: Trial, pytestconfig: pytest.Config) -> None:
    tested = pytestconfig.stash[SELECTION].model_names
    is_part = WHOLE & {*tested} and trial.subject.name not in WHOLE
    seed = seed_of(pytestconfig) + (tested.index(trial.subject.name) if is_part else 0)
    meet(trial, Meetings(trial, seed, STRENGTH), PART if is_part else SHARE)


@pytest.mark.promise(id="P8")
@pytest.mark.long_model
def test_every_two_features_meet_in_large_blocks(trial: Trial, pytestconfig: pytest.Config) -> None:
    """Serves an engine that has no smaller blocks, and would round a small pool up to one of them."""
    size = 32 if trial.subject.context_len >= 512 else max(16, trial.block_sizes[-1])
    meetings = Meetings(trial, seed_of(pytestconfig), block_sizes=(size,))
    meetings.restrict(
        drafts=["mixed"],
        prompts=["edges"],
        parameters=["drawn"],
        ends=["inside"],
        logprobs=["of tokens"],
    )
    meet(trial, meetings, SHARE)


def meet(trial: Trial, meetings: Meetings, share: float) -> None:
    meetings.serve_design(share)
    if share == 1.0 and Capability.TRACING in trial.capabilities:
        meetings.serve_missing()
        for each in meetings.missing:
            trial.must_show(" and ".join(f"{name}={value}" for name, value in each), False)


def seed_of(config: pytest.Config) -> int:
    seed = config.getoption("hypothesis_seed", default=None)
    return int(seed) if str(seed).isdigit() else 0
