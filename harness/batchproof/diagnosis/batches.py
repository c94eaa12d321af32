"""How an engine that shows neither a trace nor events may have batched, other than continuously."""

from collections.abc import Iterator
from dataclasses import replace

from batchproof.diagnosis.reruns import Call, Reruns


def supposed(reruns: Reruns) -> Iterator[tuple[Reruns, tuple[str, ...]]]:
    """Yields the reruns as they are, then with other batches, each with a line that says so."""
    yield reruns, ()
    fits = (len(c.workload.requests) <= c.workload.config.max_num_seqs for c in reruns.calls)
    if any(each.trace or each.events for each in reruns.calls) or all(fits):
        return
    yield _in_waves(reruns), ("as if each batch were done before the next begins",)
    given = [(each, each.workload) for each in reruns.calls]
    whole = [replace(c, workload=w.with_config(max_num_seqs=len(w.requests))) for c, w in given]
    fact = "as if all requests of a call were in one batch, whatever max_num_seqs is"
    yield replace(reruns, calls=whole), (fact,)


def _in_waves(reruns: Reruns) -> Reruns:
    """Returns the reruns with a call for each batch."""
    symptom, calls, place = reruns.symptom, list[Call](), 0
    for number, each in enumerate(reruns.calls):
        num_slots = each.workload.config.max_num_seqs
        for start in range(0, len(each.workload.requests), num_slots):
            batch = slice(start, start + num_slots)
            part = each.workload.with_requests(each.workload.requests[batch])
            names = {request.request_id for request in part.requests}
            if number == symptom.call and symptom.request.request_id in names:
                place = len(calls)
            calls.append(replace(each, workload=part, completions=each.completions[batch]))
    return replace(reruns, calls=calls, symptom=replace(symptom, call=place))
