"""Sets how many workloads a test generates, few for built-in engines, more for a named one; and which
tests meet a model that carries recurrent states besides the models of all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from batchproof.models.embedded import STATE_MODEL

# With this profile every planted fault is caught by the tests of its promise.
BUILT_IN_PROFILE = "quick"

# Each way in which a state can be lost, mixed up or left over is in one of them.
MEET_STATES = {
    "test_generated_workloads_keep_parity",
    "test_long_sequences_in_a_full_batch_keep_parity",
    "test_preemption_and_chunks_together_keep_parity",
    "test_rewriting_the_neighbours_moves_no_bit",
    "test_neighbours_may_come_and_go",
    "test_an_answer_resumes_from_any_of_its_tokens",
    "test_a_prompt_fed_in_chunks_is_answered_as_a_whole",
    "test_prompts_that_share_prefixes_keep_parity",
    "test_a_prompt_that_is_cached_to_its_end_goes_on_from_there",
    "test_a_prefix_whose_blocks_were_given_away_is_not_found",
    "test_a_used_engine_answers_as_a_fresh_one",
    "test_short_tenants_follow_long_ones_in_the_same_slot",
    "test_a_request_may_be_cancelled_at_any_step",
}


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Marks the tests that meet states, before they are given models."""
    if metafunc.function.__name__ in MEET_STATES:
        metafunc.definition.add_marker(pytest.mark.also_on(STATE_MODEL))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """A test keeps the settings it is imported under, so they are set while its module is collected."""
    config = collector.config
    if config.getoption("--engine") or config.getoption("--hypothesis-profile"):
        return (yield)
    outer = settings.get_current_profile_name()
    settings.load_profile(BUILT_IN_PROFILE)
    try:
        return (yield)
    finally:
        settings.load_profile(outer)
