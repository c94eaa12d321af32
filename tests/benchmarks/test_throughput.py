"""Output throughput per engine. Run with `pytest --benchmark-only`; only checked tokens count."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from harness.api import Completion
from harness.benchmarking import bimodal_workload, synchronise
from harness.trial import Trial
from harness.workloads import Outcome

ROUNDS = 5


@pytest.mark.promise(id="P1")
@pytest.mark.one_model
def test_throughput_of_checked_tokens_on_a_bimodal_workload(
    trial: Trial, benchmark: BenchmarkFixture
) -> None:
    """One engine serves all rounds; load and build are not timed. A wrong token in any round fails
    the benchmark, and then there is no figure."""
    workload = bimodal_workload(trial.subject)
    delivered: list[list[Completion]] = []
    with trial.engine(workload.config) as engine:

        def serve() -> None:
            delivered.append(list(engine.generate(list(workload.requests))))  # it may be made lazily
            synchronise(trial.subject.model.device)

        with trial.reporting(workload):
            benchmark.pedantic(serve, rounds=ROUNDS, warmup_rounds=1, iterations=1)
    with trial.reporting(workload):
        for completions in delivered:
            trial.judge(workload.requests, Outcome(tuple(completions)))
    num_output_tokens = sum(len(completion.token_ids) for completion in delivered[0])
    benchmark.extra_info.update(
        workload="bimodal",
        engine=trial.spec.name,
        model=str(trial.subject),
        num_requests=len(workload.requests),
        max_num_seqs=workload.config.max_num_seqs,
        num_output_tokens=num_output_tokens,
        num_prompt_tokens=sum(len(r.prompt_token_ids) for r in workload.requests),
    )
    if benchmark.stats is not None:  # None when timing was switched off with --benchmark-disable
        median_s = benchmark.stats.stats.median
        throughput = num_output_tokens / median_s
        benchmark.extra_info["output_throughput_tokens_per_s"] = throughput
        trial.ledger.notes.append(
            f"{trial.spec.name} on {trial.subject}: {throughput:,.0f} output tokens/s, all checked "
            f"(median of {ROUNDS} rounds of {num_output_tokens} tokens)"
        )
