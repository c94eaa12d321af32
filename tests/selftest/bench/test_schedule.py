"""What a trace shows of slots and pads."""

import pytest
import torch

from batchproof.api import Request, RowRecord, StepRecord
from batchproof.bench.metrics import Forward, schedule_figures
from batchproof.bench.timed_engine import record_forwards
from batchproof.models.random_models import build

REQUESTS = (Request("a", (1, 2, 3), 1), Request("b", (4,), 3), Request("c", (5, 6), 1))


def _step(**rows: tuple[int, int]) -> StepRecord:
    records = tuple(RowRecord(name, context, new, True) for name, (context, new) in rows.items())
    return StepRecord(records, (), (), (), ())


STATIC = (  # two slots: a and b to the end of b, then c
    *(_step(a=(0, 3), b=(0, 1)), _step(b=(1, 1)), _step(b=(2, 1)), _step(c=(0, 2))),
)
PADDED = (Forward(2, 3), Forward(2, 1), Forward(2, 1), Forward(1, 2))


def test_a_static_trace_shows_its_idle_slots_and_its_pads() -> None:
    found = schedule_figures(STATIC, PADDED, 2, REQUESTS, (1, 3, 1))
    assert found["num_steps"] == 4
    assert found["occupancy"] == pytest.approx(5 / 8)
    assert found["num_fed_tokens"] == 12
    assert found["padding_waste"] == pytest.approx(1 - 8 / 12)
    found = schedule_figures((), (), 2, REQUESTS, (1, 3, 1))
    unknown = ("num_steps", "mean_batch", "occupancy", "num_fed_tokens", "padding_waste")
    assert all(found[key] is None for key in unknown), "without trace and hook"


@pytest.mark.parametrize(
    ("forwards", "why"),
    [
        # Decodes are replayed, and pads of the prompts make up for their tokens.
        ((Forward(2, 8), Forward(1, 2)), "2 forward passes were seen in 4 steps"),
        ((Forward(1, 1),) * 4, "4 tokens were seen in forward passes, but 8 were fed"),
    ],
)
def test_what_does_not_add_up_with_the_trace_shows_no_waste(
    forwards: tuple[Forward, ...], why: str
) -> None:
    found = schedule_figures(STATIC, forwards, 2, REQUESTS, (1, 3, 1))
    assert (found["num_fed_tokens"], found["padding_waste"]) == (None, None)
    assert found["why_no_waste"] == why


def test_a_model_that_is_watched_while_it_compiles_is_not_compiled_for_each_pass() -> None:
    """An engine that compiles in its first round once gave up, as the log was guarded by its length."""
    model, compiled = build("gpt2-random"), []

    def compiler(graph: torch.fx.GraphModule, _inputs: object) -> torch.fx.GraphModule:
        compiled.append(graph)
        return graph

    embed = torch.compile(model.get_input_embeddings(), backend=compiler)
    with record_forwards(model) as seen:
        for _ in range(3):
            embed(torch.zeros(1, 2, dtype=torch.long))
    assert len(compiled) == 1
    assert seen.unseen is not None


def test_a_replay_of_a_graph_is_one_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook on the model sees no replay, so the waste is not known."""
    replays: list[None] = []
    standin = type("CUDAGraph", (), {"replay": lambda _: replays.append(None)})
    monkeypatch.setattr(torch.cuda, "CUDAGraph", standin)
    before = standin.replay  # type: ignore[attr-defined]
    with record_forwards(build("gpt2-random")) as seen:
        standin.replay(None)  # type: ignore[attr-defined]
    assert seen.unseen is not None
    assert seen.unseen.startswith("CUDA graphs were replayed")
    assert len(replays) == 1
    assert standin.replay is before  # type: ignore[attr-defined]
