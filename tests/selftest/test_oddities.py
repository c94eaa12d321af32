"""The suite proves itself from the other side: who keeps the contract, however oddly, is not blamed.

A quick look at each oddity, the same each time, on few models: those of a kind share out half of the
tests of the promises that they seem to strain, and meet a sixth each where they are few. A plain run
looks at every second one; `batchproof lab honest` looks longer, and at all of them.
"""

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
    "computing": ("P1", "P5", "P6", "P15"),
    "drafting": ("P1", "P2", "P3", "P17"),
    "delivery": ("P4", "P14", "P1", "P13"),
    "limited": ("P1", "P9", "P12", "P19"),
    "grammars": ("P22",),
    "lateness": ("P9", "P10", "P11", "P13", "P14"),
    "lifecycle": ("P23",),
    "random_tokens": ("P19",),
    "states": ("P1", "P5", "P7", "P8", "P13"),
    "waves": ("P1", "P4"),
    "wording": ("P12",),
}
LEAST_PARTS = 6  # of those tests, of which an oddity meets one
FEWEST_TESTS, FEWEST_TOKENS = 1, 2  # of an oddity
QUICK_MODELS = ("gpt2-random", "llama-random", "mistral-window")  # in turn
# The constructed models are slow and come first in the catalogue: they meet waves only.
MODELS_OF = {
    "adapters": (VARIANTS_MODEL,),
    "lifecycle": (VARIANTS_MODEL,),
    "waves": DEFAULT_MODELS[:3],
    "states": (STATE_MODEL,),
}
MODELS = {kind: MODELS_OF.get(kind, (QUICK_MODELS[index % 3],)) for index, kind in enumerate(STRAINED)}


# These tests take longer than all others; built-in engines meet them in each run of the suite.
LONG = ("test_scale", "test_scenes", "long_sequences", "filled_to_its_end", "draws_of_long_answers")
LONG += ("hold_at_every_size", "hundreds_of_live_ids", "every_adapter_is_served", "to_a_free_row")
LONG += ("powers_of_two", "cancelled_while_it_waits", "have_their_probabilities", "at_any_step")
NOT_LONG = f"not ({' or '.join(LONG)})"


@pytest.mark.every(2)
@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("kind", STRAINED)
def test_honest_oddities_are_not_blamed(kind: str, half: int, laboratory_for: LaboratoryFor) -> None:
    of_kind = [f"{ODD_PREFIX}{name}" for name, each in ODDITIES.items() if each.kind == kind]
    names = of_kind[half::2] or of_kind
    promises = " or ".join(f"promise(id='{each}')" for each in STRAINED[kind])
    where = ["-k", NOT_LONG, *(f"--model={each}" for each in MODELS[kind])]
    if MODELS[kind] == (STATE_MODEL,):  # the tests that meet such a model by default
        promises = f"({promises}) and also_on"
    engines = [f"--engine={name}" for name in names[1:]]
    arguments = ["-m", promises, *where, *engines, "--hypothesis-seed=1", "--diagnose-for=0"]
    effort = Effort("quick", max_examples=1, parts=max(LEAST_PARTS, 2 * len(of_kind)))
    lab = laboratory_for(DEFAULT_TIME_LIMIT_S)
    findings = run_suite(names[0], arguments, lab, effort)
    assert not findings.catches, "\n\n".join(catch.report for catch in findings.catches)
    assert findings.exit_status == pytest.ExitCode.OK, findings.output
    assert all(findings.passed[name] >= FEWEST_TESTS for name in names), findings.passed
    assert findings.totals["num_steps"] >= FEWEST_TOKENS * len(names)


def test_every_kind_is_known_and_every_oddity_says_what_is_odd() -> None:
    assert {each for models in MODELS.values() for each in models} == {*DEFAULT_MODELS, STATE_MODEL}
    assert {each.kind for each in ODDITIES.values()} == set(STRAINED)
    assert not ODDITIES.keys() & faults().keys()
    assert all(each.summary.endswith(".") for each in ODDITIES.values())


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
