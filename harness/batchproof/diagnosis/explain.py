"""Finds the mistake under which the reference gives exactly the engine's answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor

from batchproof.api import Capability
from batchproof.diagnosis.cell_table import CellTable, cell_table_of
from batchproof.diagnosis.counterfactual import FULL, SLIDING, View, honest_view, logits_of
from batchproof.diagnosis.cross_request_mistakes import leak_mistakes, routing_mistakes, stale_mistakes
from batchproof.diagnosis.explanation import Explanation, Observed
from batchproof.diagnosis.mask_mistakes import mask_mistakes
from batchproof.diagnosis.mistake import Mistake, Suspect
from batchproof.diagnosis.padding_mistakes import padding_mistakes
from batchproof.diagnosis.position_mistakes import feeding_mistakes, position_mistakes
from batchproof.diagnosis.prefix_mistakes import prefix_mistakes
from batchproof.diagnosis.rerunner import Call, OutOfTimeError, Rerunner
from batchproof.diagnosis.reruns import Reruns, Without
from batchproof.diagnosis.state_explanation import explain_by_states
from batchproof.diagnosis.state_replay import Change, StateReplay, carries_states
from batchproof.diagnosis.storage_mistakes import precision_mistakes, storage_mistakes
from batchproof.diagnosis.symptoms import Symptom
from batchproof.models.catalogue import ModelUnderTest
from batchproof.oracle.oracle import centred

Family = Callable[[Suspect], Iterator[Mistake]]
OWN = (position_mistakes, mask_mistakes, feeding_mistakes, storage_mistakes, precision_mistakes)
OTHERS = (routing_mistakes, leak_mistakes, stale_mistakes)
# Mistakes that leave the logits right.
WITH_RIGHT_LOGITS = (routing_mistakes, precision_mistakes)


def explain(
    rerunner: Rerunner, calls: Sequence[Call], symptom: Symptom, reruns: Reruns
) -> Explanation | None:
    """Returns the mistake that explains the answer best; None if none does.

    If the request alone is answered rightly, mistakes that involve other requests are tried first, else
    last.
    """
    is_right_alone = bool(reruns.is_right.get(Without.NEIGHBOURS))
    found = _evidence(rerunner, calls, symptom)
    if found is None:
        return None
    suspect, observed = found
    subject = rerunner.trial.subject
    if carries_states(subject):
        return explain_by_states(rerunner, suspect, observed)
    groups: list[tuple[Family, ...]] = [OTHERS, OWN] if is_right_alone else [OWN, OTHERS]
    if not reruns.movers:  # what a neighbour says is no matter of pads
        # Alone, or in a packed batch, there are no pads: they are tried last.
        has_pads = is_right_alone and not suspect.is_continuous
        groups.insert(0 if has_pads else 2, (padding_mistakes,))
    groups.insert(0, (prefix_mistakes,))
    if observed.logits is None and _are_right(calls, symptom, observed):
        groups = [WITH_RIGHT_LOGITS]
    elif observed.logits is None and is_right_alone:
        groups.remove(OWN)  # a few tokens fit many mistakes: only those that need the others
    for group in groups:
        best = _best(
            rerunner, subject, suspect, observed, chain.from_iterable(f(suspect) for f in group)
        )
        if best is not None:
            return best
    return None


def _are_right(calls: Sequence[Call], symptom: Symptom, observed: Observed) -> bool:
    """Returns whether the engine's logits are right at its first wrong token."""
    completion = calls[symptom.call].completion(symptom.request.request_id)
    if completion is None or completion.logits is None or len(completion.logits) <= symptom.step:
        return False
    shown = centred(completion.logits[symptom.step])
    return bool((shown - observed.honest[0]).abs().max() <= observed.tolerance)


def _evidence(
    rerunner: Rerunner, calls: Sequence[Call], symptom: Symptom
) -> tuple[Suspect, Observed] | None:
    trial = rerunner.trial
    subject = trial.subject
    has_states = carries_states(subject)
    if not (has_states or subject.layer_kinds <= {FULL, SLIDING}):
        return None  # the table knows the keys of these two kinds
    table = cell_table_of([(c.workload, c.completions, c.schedule()) for c in calls])
    completion = calls[symptom.call].completion(symptom.request.request_id)
    if table is None or completion is None:
        return None
    seq = next(
        number
        for number, fed in enumerate(table.sequences)
        if fed.call == symptom.call and fed.request.request_id == symptom.request.request_id
    )
    cells = [s.cell for s in table.samples if s.seq == seq and s.output >= symptom.step]
    cells = cells[: len(completion.token_ids) - symptom.step]
    if not cells:
        return None
    end = symptom.step + len(cells)
    window = _window(subject)
    honest = honest_view(table, torch.tensor(cells), window, subject.layer_kinds)
    tokens = torch.tensor(completion.token_ids[symptom.step : end])
    exact = centred(_exact(subject, table, seq, honest) if has_states else logits_of(subject, honest))
    given = None if completion.logits is None else completion.logits[symptom.step : end]
    observed = Observed(tokens, _believed(given, tokens, exact), exact, 1.5 * trial.oracle.logit_bound)
    config = calls[symptom.call].workload.config
    is_continuous = Capability.SCHEDULING in trial.capabilities
    only_window = None if honest.within else window
    return Suspect(table, seq, honest, only_window, config, is_continuous), observed


def _exact(subject: ModelUnderTest, table: CellTable, seq: int, honest: View) -> Tensor:
    """Returns the right logits `(n, vocab)` of a model that carries states."""
    replay = StateReplay(subject, table)
    logits = replay.logits(replay.passes(seq), Change())
    return torch.stack([logits[cell] for cell in honest.samples.tolist()])


def _believed(given: Tensor | None, tokens: Tensor, exact: Tensor) -> Tensor | None:
    """Returns the engine's logits, centred, `(n, vocab)`; None where its wrong tokens were not chosen
    from them, so that only tokens can be compared."""
    if given is None or len(given) != len(tokens) or not bool(torch.isfinite(given).all()):
        return None
    is_argmax = torch.equal(given.cpu().argmax(-1), tokens)
    return centred(given) if is_argmax or torch.equal(exact.argmax(-1), tokens) else None


def _window(subject: ModelUnderTest) -> int | None:
    if subject.layer_kinds and SLIDING not in subject.layer_kinds:
        return None
    return getattr(subject.model.config.get_text_config(), "sliding_window", None)


def _best(
    rerunner: Rerunner,
    subject: ModelUnderTest,
    suspect: Suspect,
    observed: Observed,
    mistakes: Iterator[Mistake],
) -> Explanation | None:
    """Returns the mistake that misses least. Earlier ones are more common, so a later one must be
    clearly better to replace them."""
    best: Explanation | None = None
    try:
        for mistake in mistakes:
            rerunner.check_time()
            found = _tried(subject, suspect, observed, mistake)
            if found and (best is None or found.badness < 0.5 * best.badness):
                best = found
    except OutOfTimeError:
        pass  # the best so far is returned
    return best


def _tried(
    subject: ModelUnderTest, suspect: Suspect, observed: Observed, mistake: Mistake
) -> Explanation | None:
    """Tries the mistake at all steps, then from the first wrong output on, then at that output only:
    some mistakes are made rarely."""
    table, cause, text = suspect.table, mistake.cause, mistake.text
    if mistake.view.is_same(suspect.honest):
        return None
    predicted = centred(logits_of(subject, mistake.view))
    share = observed.share(predicted, mistake.is_rounding)
    if share is not None:
        known = None if observed.logits is None else share
        return Explanation(cause, text, known, len(observed.tokens), "all")
    if observed.logits is None or mistake.is_rounding:
        return None
    first_step = table.step[suspect.honest.samples[0]]
    for extent, where in (("later", table.step >= first_step), ("one", table.step == first_step)):
        view = _limited(mistake.view, suspect, where)
        seen = observed
        if extent == "one":
            view = replace(view, samples=view.samples[:1])
            seen = observed.first()
        share = seen.share(centred(logits_of(subject, view)), is_rounding=False)
        if share is not None:
            return Explanation(cause, text, share, len(seen.tokens), extent)
    return None


def _limited(view: View, suspect: Suspect, where: Tensor) -> View:
    """Returns the view with the mistake restricted to the queries `where`, bool `(num_cells,)`."""
    honest, size = suspect.honest, suspect.table.num_cells
    visible = view.visible.clone()
    visible[:size] = False
    visible[:size, :size] = honest.visible
    visible[:size][where] = view.visible[:size][where]
    token, position = view.token.clone(), view.position.clone()
    token[:size] = torch.where(where, view.token[:size], honest.token)
    position[:size] = torch.where(where, view.position[:size], honest.position)
    within = honest.within
    if view.within is not within:
        within = {
            kind: torch.where(where[:, None], _within(view, kind, size), _within(honest, kind, size))
            for kind in {*within, *view.within}
        }
    return replace(view, token=token, position=position, visible=visible, within=within)


def _within(view: View, kind: str, size: int) -> Tensor:
    return view.within.get(kind, torch.ones(size, size, dtype=torch.bool))


def rounding_explains(rerunner: Rerunner, calls: Sequence[Call], symptom: Symptom) -> float | None:
    """Returns the distance from the right logits in units of the distance that bfloat16 arithmetic
    causes; None if there are no logits to compare."""
    subject, found = rerunner.trial.subject, _evidence(rerunner, calls, symptom)
    if found is None or carries_states(subject):
        return None
    suspect, observed = found
    if observed.logits is None:
        return None
    low = centred(logits_of(subject, suspect.honest, torch.bfloat16))
    rounded = (low - observed.honest).pow(2).mean().sqrt().item()
    off = (observed.logits - observed.honest).pow(2).mean().sqrt().item()
    return off / rounded if rounded else None
