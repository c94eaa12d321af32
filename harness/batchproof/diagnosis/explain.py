"""Which mistake gives the very answer the engine gave?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import Tensor

from batchproof.api import Capability
from batchproof.diagnosis.adopted import prefix_mistakes
from batchproof.diagnosis.foreign import leak_mistakes, routing_mistakes, stale_mistakes
from batchproof.diagnosis.masks import mask_mistakes
from batchproof.diagnosis.mistake import Mistake, Suspect
from batchproof.diagnosis.padding import padding_mistakes
from batchproof.diagnosis.positions import feeding_mistakes, position_mistakes
from batchproof.diagnosis.stage import (
    Call,
    OutOfTimeError,
    Stage,
    Symptom,
)
from batchproof.diagnosis.storage import precision_mistakes, storage_mistakes
from batchproof.diagnosis.tape import tape_of
from batchproof.diagnosis.twin import View, honest_view, logits_of
from batchproof.models.catalogue import ModelUnderTest
from batchproof.oracle.oracle import centred

Family = Callable[[Suspect], Iterator[Mistake]]
OWN = (position_mistakes, mask_mistakes, feeding_mistakes, storage_mistakes, precision_mistakes)
OTHERS = (routing_mistakes, leak_mistakes, stale_mistakes)
# A wrong token beside the right logits.
WITH_RIGHT_LOGITS = (routing_mistakes, precision_mistakes)
# A mistake must bring the distance to the engine's logits down to this share of the honest one's.
EXPLAINED_SHARE = 0.1
ROUNDING_SHARE = 0.5
ROUNDING_LEAVES = 1e-3


@dataclass(frozen=True, slots=True)
class Explanation:
    """`share`: what is left of the distance between the right logits and the engine's; None if there
    were only tokens to go by."""

    mistake: Mistake
    share: float | None
    num_outputs: int
    extent: str  # made at "all" steps, at the first wrong and "later" ones, or at that "one" only

    @property
    def badness(self) -> float:
        """The share; what is left by rounding counts the same for all."""
        return max(self.share or 0.0, ROUNDING_LEAVES)

    def words(self) -> str:
        if self.share is None:
            weak = " (one token fits many mistakes)" if self.num_outputs == 1 else ""
            return f"a reference with this mistake gives its tokens from the first wrong one on{weak}"
        made = {
            "all": f"a reference with this mistake gives the logits of all {self.num_outputs} outputs",
            "later": f"a reference that makes it from then on gives {self.num_outputs} outputs' logits",
            "one": "a reference that makes it once gives the logits there",
        }[self.extent]
        rest = f", but for {self.share:.1%} of the difference"
        return made + ("" if self.share < ROUNDING_LEAVES else rest)


@dataclass(frozen=True, slots=True)
class _Observed:
    """The engine's answer from the first wrong output on, and the honest one."""

    tokens: Tensor
    logits: Tensor | None  # float64, centred
    honest: Tensor  # float64, centred
    tolerance: float

    def first(self) -> _Observed:
        """The first wrong output alone."""
        logits = None if self.logits is None else self.logits[:1]
        return _Observed(self.tokens[:1], logits, self.honest[:1], self.tolerance)

    def share(self, predicted: Tensor, is_rounding: bool) -> float | None:
        """How badly the prediction misses, as a share of how badly the honest one does; None: too
        badly to be an explanation."""
        if self.logits is None:
            fits = torch.equal(predicted.argmax(-1), self.tokens)
            return 0.0 if fits else None
        missed, honest = (self.logits - predicted), (self.logits - self.honest)
        if is_rounding:
            share = (missed.pow(2).mean() / honest.pow(2).mean()).sqrt().item()
            return share if share < ROUNDING_SHARE else None
        share = (missed.abs().max() / honest.abs().max()).item()
        is_close = bool(missed.abs().max() <= self.tolerance) and share < 0.3
        return share if share < EXPLAINED_SHARE or is_close else None


def explain(
    stage: Stage, calls: Sequence[Call], symptom: Symptom, is_right_alone: bool
) -> Explanation | None:
    """The mistake that explains the answer best; None if none does.

    If the request is answered rightly alone, mistakes about others are tried first, else last.
    """
    found = _evidence(stage, calls, symptom)
    if found is None:
        return None
    suspect, observed = found
    subject = stage.trial.subject
    groups: list[tuple[Family, ...]] = [OTHERS, OWN] if is_right_alone else [OWN, OTHERS]
    # Alone, or in a packed batch, there are no pads: they are thought of last.
    has_pads = is_right_alone and not suspect.is_continuous
    groups.insert(0 if has_pads else 2, (padding_mistakes,))
    groups.insert(0, (prefix_mistakes,))
    if observed.logits is None and _are_right(calls, symptom, observed):
        groups = [WITH_RIGHT_LOGITS]
    elif observed.logits is None and is_right_alone:
        groups.remove(OWN)  # a few tokens fit many mistakes: only those that need the others
    for group in groups:
        best = _best(stage, subject, suspect, observed, chain.from_iterable(f(suspect) for f in group))
        if best is not None:
            return best
    return None


def _are_right(calls: Sequence[Call], symptom: Symptom, observed: _Observed) -> bool:
    """Are the logits the engine shows right at the first wrong token?"""
    completion = calls[symptom.call].completion(symptom.request.request_id)
    if completion is None or completion.logits is None or len(completion.logits) <= symptom.step:
        return False
    shown = centred(completion.logits[symptom.step])
    return bool((shown - observed.honest[0]).abs().max() <= observed.tolerance)


def _evidence(
    stage: Stage, calls: Sequence[Call], symptom: Symptom
) -> tuple[Suspect, _Observed] | None:
    trial = stage.trial
    subject = trial.subject
    tape = tape_of([(c.workload, c.completions, c.schedule()) for c in calls])
    completion = calls[symptom.call].completion(symptom.request.request_id)
    if tape is None or completion is None:
        return None
    seq = next(
        number
        for number, fed in enumerate(tape.sequences)
        if fed.call == symptom.call and fed.request.request_id == symptom.request.request_id
    )
    cells = [s.cell for s in tape.samples if s.seq == seq and s.output >= symptom.step]
    cells = cells[: len(completion.token_ids) - symptom.step]
    if not cells:
        return None
    end = symptom.step + len(cells)
    honest = honest_view(tape, torch.tensor(cells), _window(subject))
    tokens = torch.tensor(completion.token_ids[symptom.step : end])
    exact = centred(logits_of(subject, honest))
    given = None if completion.logits is None else completion.logits[symptom.step : end]
    observed = _Observed(
        tokens,
        _believed(given, tokens, exact),
        exact,
        1.5 * trial.oracle.kappa * trial.oracle.error.max_abs,
    )
    config = calls[symptom.call].workload.config
    is_continuous = Capability.SCHEDULING in trial.capabilities
    return Suspect(tape, seq, honest, _window(subject), config, is_continuous), observed


def _believed(given: Tensor | None, tokens: Tensor, exact: Tensor) -> Tensor | None:
    """The engine's logits, centred. None where they are not those its wrong tokens came from: then
    only the tokens tell."""
    if given is None or len(given) != len(tokens) or not bool(torch.isfinite(given).all()):
        return None
    is_argmax = torch.equal(given.cpu().argmax(-1), tokens)
    return centred(given) if is_argmax or torch.equal(exact.argmax(-1), tokens) else None


def _window(subject: ModelUnderTest) -> int | None:
    config = subject.model.config.get_text_config()
    layer_types = getattr(config, "layer_types", None)
    if layer_types is not None and "sliding_attention" not in layer_types:
        return None
    return getattr(config, "sliding_window", None)


def _best(
    stage: Stage,
    subject: ModelUnderTest,
    suspect: Suspect,
    observed: _Observed,
    mistakes: Iterator[Mistake],
) -> Explanation | None:
    """The first of those that miss least: of equals the more common mistake."""
    best: Explanation | None = None
    try:
        for mistake in mistakes:
            stage.check_time()
            for each in _tried(subject, suspect, observed, mistake):
                if best is None or each.badness < 0.5 * best.badness:
                    best = each
    except OutOfTimeError:
        pass  # what was found by then is what there is
    return best


def _tried(
    subject: ModelUnderTest, suspect: Suspect, observed: _Observed, mistake: Mistake
) -> Iterator[Explanation]:
    """At all steps; from the first wrong output on; at that one only: some mistakes are rare."""
    if mistake.view.is_same(suspect.honest):
        return
    tape, num_outputs = suspect.tape, len(observed.tokens)
    predicted = centred(logits_of(subject, mistake.view))
    share = observed.share(predicted, mistake.is_rounding)
    if share is not None or observed.logits is None or mistake.is_rounding:
        if share is not None:
            known = None if observed.logits is None else share
            yield Explanation(mistake, known, num_outputs, "all")
        return
    first_step = tape.step[suspect.honest.samples[0]]
    for extent, where in (("later", tape.step >= first_step), ("one", tape.step == first_step)):
        view = _limited(mistake.view, suspect, where)
        seen = observed
        if extent == "one":
            view = replace(view, samples=view.samples[:1])
            seen = observed.first()
        share = seen.share(centred(logits_of(subject, view)), is_rounding=False)
        if share is not None:
            yield Explanation(mistake, share, len(seen.tokens), extent)
            return


def _limited(view: View, suspect: Suspect, where: Tensor) -> View:
    """The mistake, made by these queries and no others."""
    honest, size = suspect.honest, suspect.tape.num_cells
    visible = view.visible.clone()
    visible[:size] = False
    visible[:size, :size] = honest.visible
    visible[:size][where] = view.visible[:size][where]
    token, position = view.token.clone(), view.position.clone()
    token[:size] = torch.where(where, view.token[:size], honest.token)
    position[:size] = torch.where(where, view.position[:size], honest.position)
    return replace(view, token=token, position=position, visible=visible)


def rounding_explains(stage: Stage, calls: Sequence[Call], symptom: Symptom) -> float | None:
    """The distance from the right logits as a share of what bfloat16 arithmetic would make it; None
    if it cannot be told."""
    found = _evidence(stage, calls, symptom)
    if found is None:
        return None
    suspect, observed = found
    if observed.logits is None:
        return None
    low = centred(logits_of(stage.trial.subject, suspect.honest, torch.bfloat16))
    rounded = (low - observed.honest).pow(2).mean().sqrt().item()
    off = (observed.logits - observed.honest).pow(2).mean().sqrt().item()
    return off / rounded if rounded else None
