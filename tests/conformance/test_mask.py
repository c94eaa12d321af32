"""P6: a query attends to exactly the keys of its own sequence, up to itself, inside its window."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchproof.api import EngineConfig, Request, RowRecord
from batchproof.checks.broken import require
from batchproof.checks.masks import mask_findings, move_findings
from batchproof.generators.strategies import prompts
from batchproof.oracle.oracle import largest_move, teacher_forced
from batchproof.run.relations import comparing, is_bitwise
from batchproof.run.trial import Trial
from batchproof.workload.workloads import Workload

pytestmark = pytest.mark.promise(id="P6")

LAYOUTS = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 9)), min_size=1, max_size=5)


@pytest.mark.needs("masking")
@given(layout=LAYOUTS)
def test_the_mask_equals_its_definition(trial: Trial, layout: list[tuple[int, int]]) -> None:
    rows = [RowRecord(f"r{i}", context, query, True) for i, (context, query) in enumerate(layout)]
    with trial.engine(EngineConfig()) as engine, trial.reporting(Workload(())):
        require(mask_findings(engine.attention_mask(rows), rows, _window(trial)))
    trial.ledger.num_requests += len(rows)


def _window(trial: Trial) -> int | None:
    """Returns the smallest window of the model's layers, from its config."""
    config = trial.subject.model.config.get_text_config()
    layer_types = getattr(config, "layer_types", None)
    if layer_types is not None and "sliding_attention" not in layer_types:
        return None
    return getattr(config, "sliding_window", None)


@pytest.mark.needs("logits")
@given(data=st.data())
def test_one_changed_token_moves_exactly_the_queries_that_may_see_it(
    trial: Trial, data: st.DataObject
) -> None:
    """Checks the mask by behaviour. All prefixes of one prompt form a batch, so every query of the
    prompt is sampled once. After one token is changed, the queries whose logits move must be those
    that move in the float64 reference: all from that position on, or as far as the windows of all
    layers reach."""
    prompt = data.draw(prompts(trial.subject, st.integers(2, 18)))
    position = data.draw(st.integers(0, len(prompt) - 1), label="changed position")
    other = (prompt[position] + data.draw(st.integers(1, 255))) % trial.subject.vocab_size
    changed = (*prompt[:position], other, *prompt[position + 1 :])
    config = EngineConfig(
        max_num_seqs=data.draw(st.integers(1, 6), label="max_num_seqs"), return_logits=True
    )
    first, second = (Workload(_prefixes(each), config) for each in (prompt, changed))
    before, after = (trial.check(each).completions for each in (first, second))
    bound = 2 * trial.oracle.kappa * trial.oracle.error.max_abs
    # The shapes of experts follow contents, the changed token's too.
    allowed = bound if trial.subject.has_experts or not is_bitwise(trial) else 0.0
    moved = [largest_move(a.logits, b.logits) for a, b in zip(before, after, strict=True)]
    should_move = _reference_moves(trial, prompt, changed, bound)
    with trial.reporting(second), comparing(trial, before[0], after[0]):
        require(
            finding
            for query, (by, must) in enumerate(zip(moved, should_move, strict=True))
            for finding in move_findings(query, position, by, must, bound, allowed)
        )


def _prefixes(prompt: tuple[int, ...]) -> tuple[Request, ...]:
    return tuple(Request(f"prefix-{n}", prompt[:n], 1) for n in range(1, len(prompt) + 1))


def _reference_moves(
    trial: Trial, prompt: tuple[int, ...], changed: tuple[int, ...], bound: float
) -> list[bool | None]:
    """Returns per query: True if it moves by more than rounding hides, False if by no bit, else
    None."""
    moves: list[bool | None] = []
    prefixes = [[(each[:n], (0,)) for n in range(1, len(each) + 1)] for each in (prompt, changed)]
    scores = (teacher_forced(trial.subject, each) for each in prefixes)
    for old, new in zip(*scores, strict=True):
        moved = largest_move(old, new)
        moves.append(False if moved == 0.0 else True if moved > 2 * bound else None)
    return moves
