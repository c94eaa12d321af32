"""Mistakes of low-rank adapters: another one, none, a part of one, or one that prefixes outlive."""

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from batchproof.decoding.adapters import SCALE
from batchproof.diagnosis.counterfactual import Mistake, Suspect
from batchproof.diagnosis.mistakes.parts import cells_by_step
from batchproof.findings.causes import Cause
from batchproof.models.adapted_tokens import Adapting
from batchproof.workload.workloads import Workload

LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

ALONE = "the model alone"


def adapter_mistakes(workloads: Sequence[Workload], suspect: Suspect) -> Iterator[Mistake]:
    """Yields mistakes in which tokens of the answer are computed under another adapter than the one
    that its request names, or under a part of it. `workloads` are the calls of the table."""
    fed = suspect.table.sequences[suspect.seq]
    others = _others(workloads[: fed.call + 1], fed.variant)
    own = "none" if fed.request.adapter is None else repr(fed.request.adapter)
    for number, words in others.items():
        yield _under(suspect, f"it is answered under {words}; it names {own}", number, suspect.is_own)
    reused = suspect.is_own & (suspect.table.is_reused == 1)
    for number, words in others.items():
        text = f"the keys taken over were computed under {words}; it names {own}"
        yield _under(suspect, text, number, reused)
    if fed.variant:
        yield from _in_part(suspect)
        is_fed = suspect.is_own & (suspect.table.is_reused == 0)
        for what, (_, cells) in cells_by_step(suspect.table).items():
            yield _under(suspect, f"{what} is computed under {ALONE}", 0, is_fed & cells)


def _others(calls: Sequence[Workload], own: int) -> Mapping[int, str]:
    """Returns the numbers of all adapters that the engine has had, but for the request's own, and what
    they are called; last those of earlier calls."""
    found = {0: [ALONE]}
    for name, number in calls[-1].adapters:
        found.setdefault(number, []).append(f"adapter {name!r}")
    for call, workload in reversed([*enumerate(calls[:-1], start=1)]):
        for name, number in workload.adapters:
            if (name, number) not in calls[-1].adapters:
                words = f"the adapter that was {name!r} in call {call}"
                found.setdefault(number, []).append(words)
    return {number: " or ".join(words[:2]) for number, words in found.items() if number != own}


def _under(suspect: Suspect, text: str, number: int, cells: Tensor) -> Mistake:
    variant = suspect.honest.variant.masked_fill(cells, number)
    return suspect.mistake(Cause.ADAPTER, text, variant=variant)


def _in_part(suspect: Suspect) -> Iterator[Mistake]:
    for layer in LAYERS:
        text = f"its adapter is left out of {layer}"
        yield suspect.mistake(Cause.ADAPTER, text, adapting=Adapting(without=layer))
    for words, factor in (
        ("is not scaled", lambda _: 1 / SCALE),
        ("is scaled by alpha, not alpha / rank", lambda added: float(len(added.a))),
    ):
        text = f"what its adapter adds {words}"
        yield suspect.mistake(Cause.ADAPTER, text, adapting=Adapting(factor=factor))
