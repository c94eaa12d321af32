"""The sentences of the contract, the conformance tests and the oddities name each other."""

import re
from itertools import pairwise

from batchproof.cases.files import load_cases
from batchproof.checks.happened import OWN_CHOICE
from batchproof.places import SUITE
from batchproof.requirements.contract import PAGE, page, sentences
from batchproof.requirements.promises import Promise
from batchproof.run.registry import oddities


def test_every_test_holds_to_a_sentence_and_every_must_has_one_or_says_why_not() -> None:
    """A test that is new, renamed or gone changes contract.yaml; so does an oddity."""
    found = {
        f"{path.stem}::{name}"
        for path in SUITE.glob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)
    }
    for each in sentences():
        assert bool(each.must) != bool(each.may), each.id
        assert not each.odd if each.must else not each.tests, each.id
        assert bool(each.must) == (bool(each.tests) != bool(each.untested)), each.id
    assert {test for each in sentences() for test in each.tests} == found
    assert {name for each in sentences() for name in each.odd} == {*oddities()}


def test_what_is_an_engines_own_choice_is_asked_for() -> None:
    asked = "".join(path.read_text("utf-8") for path in SUITE.glob("test_*.py"))
    events = {f"{event} in a case" for case in load_cases() for event in case.events}
    assert all(each in asked or each in events for each in OWN_CHOICE)


def test_sentences_are_numbered_by_promise() -> None:
    numbers = [tuple(map(int, each.id.removeprefix("C-").split("."))) for each in sentences()]
    for before, after in pairwise(numbers):
        assert after in ((before[0], before[1] + 1), (before[0] + 1, 1)), after
    assert {each.promise for each in sentences() if each.must} == {*Promise}


def test_the_page_is_made_of_the_sentences() -> None:
    assert PAGE.read_text("utf-8") == page(), "python -m batchproof.requirements.contract writes it"
