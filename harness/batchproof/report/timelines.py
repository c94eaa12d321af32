"""Slot timelines of a comparison, as its rows hold them."""

from __future__ import annotations

from collections.abc import Sequence

from batchproof.drawing.timeline import Span, Timeline
from batchproof.drawing.timeline_svg import TimelinePicture, timeline_picture
from batchproof.report.rows import Data, schedule
from batchproof.report.words import shortened

CAPTION = (
    "Each row is a slot of the batch, each colour a request: full colour while its prompt is fed, a "
    "tint while it decodes, one token a step. Hatched slots do nothing useful."
)
BARRIERS = " A static wave is over when its longest answer is (dashed line)."


def slot_timelines(name: str, rows: Sequence[Data]) -> TimelinePicture:
    """Returns the picture. Each row must have a timeline."""
    timelines = [(shortened(row["engine"], 40), timeline(schedule(row)["timeline"])) for row in rows]
    found = {int(span.request) for _, each in timelines for span in each.spans}
    requests = {str(number): "" for number in range(1, max(found, default=0) + 1)}
    caption = CAPTION + (BARRIERS if any(each.barriers for _, each in timelines) else "")
    return timeline_picture(timelines, requests, f"Requests in their slots: {name}", caption)


def timeline(written: Data) -> Timeline:
    """Returns the timeline in a result file. Its requests are named by their numbers, from 1."""
    spans = tuple(
        Span(
            each["slot"],
            each["start"],
            str(each["request"] + 1),
            tuple((num_tokens, num_fed) for num_tokens, num_fed in each["prefill"]),
            each["decodes"],
        )
        for each in written["stays"]
    )
    return Timeline(written["num_slots"], written["num_steps"], spans, tuple(written["barriers"]))
