"""What a trace shows of slots."""

from batchproof.api import RowRecord, StepRecord
from batchproof.bench.metrics import schedule_figures


def _step(**rows: tuple[int, int]) -> StepRecord:
    records = tuple(RowRecord(name, context, new, True) for name, (context, new) in rows.items())
    return StepRecord(records, (), (), (), ())


STATIC = (  # two slots: a and b to the end of b, then c
    *(_step(a=(0, 3), b=(0, 1)), _step(b=(1, 1)), _step(b=(2, 1)), _step(c=(0, 2))),
)


def test_a_static_trace_shows_its_idle_slots() -> None:
    found = schedule_figures(STATIC, 2)
    assert found == {"num_steps": 4, "mean_batch": 5 / 4, "occupancy": 5 / 8}
    assert set(schedule_figures((), 2).values()) == {None}
