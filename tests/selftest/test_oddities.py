"""The suite proves itself from the other side: who keeps the contract, however oddly, is not blamed.

A quick look at each oddity, the same each time, on one model and at one of the promises that its kind
seems to strain; those of a kind share the promises out. `batchproof lab honest` looks longer, and
at all of them.
"""

from itertools import cycle, islice

import pytest

from batchproof.errors import UsageError
from batchproof.models.embedded import DEFAULT_MODELS, STATE_MODEL, VARIANTS_MODEL
from batchproof.run.engine_names import FAULT_PREFIX, ODD_PREFIX
from batchproof.run.registry import faults, oddities, resolve_engine
from batchproof.workload.workloads import DEFAULT_TIME_LIMIT_S
from batchproof_lab.suite_run import Effort, run_suite
from tests.selftest.conftest import LaboratoryFor

ODDITIES = oddities()
# Where an oddity of each kind might look guilty.
STRAINED = {
    "adapters": ("P21",),
    "admission": ("P1", "P10", "P13"),  # what is odd about them is that P9 is not for them
    "blocks": ("P1", "P9", "P10", "P11"),
    "choosing": ("P18", "P19"),
    "computing": ("P1", "P15", "P5", "P6"),
    "drafting": ("P17", "P2", "P3", "P1"),
    "delivery": ("P4", "P14", "P1", "P13", "P1", "P1"),  # those of P13 and P14 can be stepped
    "limited": ("P1", "P9", "P12", "P19"),
    "grammars": ("P22",),
    "lateness": ("P9", "P10", "P11", "P13", "P14"),
    "lifecycle": ("P23",),
    "random_tokens": ("P19",),
    "states": ("P1", "P5", "P7", "P8", "P13"),
    "waves": ("P1", "P4"),
    "wording": ("P12",),
}
EFFORT = Effort(profile="quick", max_examples=1)
FEWEST_TESTS, FEWEST_TOKENS = 1, 2
QUICK_MODELS = ("gpt2-random", "llama-random", "mistral-window")
# In turn. The constructed models are slow and come first in the catalogue: they meet waves only.
MODELS_OF = {
    "adapters": (VARIANTS_MODEL,) * 3,
    "lifecycle": (VARIANTS_MODEL,) * 3,
    "waves": DEFAULT_MODELS[:3],
    "states": (STATE_MODEL,) * 3,
}
MODELS = {
    name: MODELS_OF.get(oddity.kind, QUICK_MODELS)[index % 3]
    for index, (name, oddity) in enumerate(ODDITIES.items())
}


# The promises at which each oddity is looked at: one, or more where a kind has few oddities.
PROMISES: dict[str, tuple[str, ...]] = {}
for kind, strained in STRAINED.items():
    of_kind = [name for name, oddity in ODDITIES.items() if oddity.kind == kind]
    size, turns = -(-len(strained) // len(of_kind)), cycle(strained)
    PROMISES |= {name: tuple(islice(turns, size)) for name in of_kind}
# These tests take longer than all others: one oddity meets them of each kind that schedules, stores,
# draws or refuses otherwise.
LONG = ("test_scale", "test_scenes", "long_sequences", "around_powers", "filled_to_its_end")
LONG += ("hold_at_every_size", "hundreds_of_live_ids", "every_adapter_is_served")
LONG += ("draws_of_long_answers", "who_moves_to_a_free_row", "under_its_own_adapter_alone")
SCALED = ("idles_every_other_step", "takes_the_highest_blocks", "waves_in_buckets")
SCALED += ("draws_by_inverse_cdf", "refuses_in_json", "keeps_no_prefix_under_adapters")
BLOCKS_SCALED = "takes_the_highest_blocks"  # others meet the scenes
assert {*SCALED} <= {*ODDITIES}, "a name that is none would scale nothing"


@pytest.mark.parametrize("name", ODDITIES)
def test_an_honest_oddity_is_not_blamed(name: str, laboratory_for: LaboratoryFor) -> None:
    promises = " or ".join(f"promise(id='{each}')" for each in PROMISES[name])
    left_out = LONG if name not in SCALED else ("test_scenes",) if name == BLOCKS_SCALED else ()
    model, chosen = MODELS[name], ["-k", f"not ({' or '.join(left_out)})"] if left_out else []
    where = [f"--model={model}", *chosen]
    if model == STATE_MODEL:  # the tests that meet it by default
        where = ["-k", f"{model} and not long_sequences"]
    arguments = ["-m", promises, *where, "--hypothesis-seed=1", "--diagnose-for=0"]
    lab = laboratory_for(DEFAULT_TIME_LIMIT_S)
    findings = run_suite(f"{ODD_PREFIX}{name}", arguments, lab, EFFORT)
    assert not findings.catches, "\n\n".join(catch.report for catch in findings.catches)
    assert findings.exit_status == pytest.ExitCode.OK, findings.output
    assert findings.num_passed >= FEWEST_TESTS
    assert findings.totals["num_steps"] >= FEWEST_TOKENS


def test_every_kind_meets_its_promises_and_every_oddity_says_what_is_odd() -> None:
    assert set(MODELS.values()) == {*DEFAULT_MODELS, STATE_MODEL}
    for kind, promises in STRAINED.items():
        names = [name for name, oddity in ODDITIES.items() if oddity.kind == kind]
        assert {each for name in names for each in PROMISES[name]} == set(promises)
    assert not ODDITIES.keys() & faults().keys()
    assert all(each.summary.endswith(".") and each.kind in STRAINED for each in ODDITIES.values())


@pytest.mark.parametrize(
    ("prefix", "words"), [(FAULT_PREFIX, "no planted fault"), (ODD_PREFIX, "no honest oddity")]
)
def test_an_unknown_name_is_refused_with_those_near_it(prefix: str, words: str) -> None:
    known = list(faults() if prefix == FAULT_PREFIX else ODDITIES)
    with pytest.raises(UsageError) as caught:
        resolve_engine(f"{prefix}{known[0]}x")
    message = str(caught.value)
    assert f"'{prefix}{known[0]}x' is {words}; do you mean {known[0]}" in message
    assert message.endswith(f" lists all {len(known)}")
    assert len(message) < 300
    with pytest.raises(UsageError, match="unknown option 'size'; its factory takes none"):
        resolve_engine(f"{ODD_PREFIX}one_at_a_time?size=1")
