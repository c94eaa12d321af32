"""Finds the mistake under which the reference gives exactly the engine's answer."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, takewhile
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from batchproof.api import Capability
from batchproof.diagnosis.counterfactual import (
    FULL,
    SLIDING,
    Mistake,
    Predictions,
    Suspect,
    View,
    cell_table_of,
    honest_view,
    logits_of,
)
from batchproof.diagnosis.mistakes.adapters import adapter_mistakes
from batchproof.diagnosis.mistakes.masks import (
    leak_mistakes,
    mask_mistakes,
    padding_mistakes,
    routing_mistakes,
    stale_mistakes,
)
from batchproof.diagnosis.mistakes.parts import expert_mistakes, part_mistakes
from batchproof.diagnosis.mistakes.states import (
    Change,
    StateMistake,
    StateReplay,
    carries_states,
    passes_around,
    state_mistakes,
)
from batchproof.diagnosis.mistakes.storage import precision_mistakes, storage_mistakes
from batchproof.diagnosis.mistakes.tokens import feeding_mistakes, position_mistakes
from batchproof.diagnosis.reruns import Rerunner, Reruns, Without
from batchproof.findings.causes import Cause
from batchproof.models.catalogue import ModelUnderTest
from batchproof.oracle.oracle import centred

# A mistake must bring the distance to the engine's logits down to this share of the honest one's.
EXPLAINED_SHARE = 0.1
ONCE_EXPLAINED_SHARE = 0.02  # where a single output shows it
ROUNDING_SHARE = 0.5
ROUNDING_LEAVES = 1e-3
CLEARLY = 0.5  # the share of its badness that a mistake must have to replace an earlier one
ALIKE = 0.2  # cosine of errors; of unrelated ones in 256 logits it is beyond 0.2 once in a thousand


@dataclass(frozen=True, slots=True)
class Explanation:
    """A mistake that explains the answer: its cause, and `text`, words an engineer can act on.

    `share` is the part of the distance between the right logits and the engine's that it leaves; None
    if only tokens could be compared.
    """

    cause: Cause
    text: str
    share: float | None
    num_outputs: int
    extent: str  # "all" steps; the first wrong one and "later" ones; that "one" only

    @property
    def badness(self) -> float:
        """Returns the share, but at least what rounding leaves: below that all are equally good."""
        return max(self.share or 0.0, ROUNDING_LEAVES)

    def is_better(self, other: Self) -> bool:
        """Returns whether it explains more outputs, or as many and leaves clearly less."""
        if self.num_outputs != other.num_outputs:
            return self.num_outputs > other.num_outputs
        return self.badness < CLEARLY * other.badness

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
class Observed:
    """The engine's answer from the first wrong output on, and the logits of the reference there.
    `tokens` has shape `(n,)`, `logits` and `honest` have shape `(n, vocab)`."""

    tokens: Tensor
    logits: Tensor | None  # float64, centred
    honest: Tensor  # float64, centred
    tolerance: float

    def explanation(
        self, mistake: Mistake | StateMistake, predictions: Predictions
    ) -> Explanation | None:
        """Returns the mistake if logits that it gives explain the answer, else None."""
        for extent, predicted in predictions:
            share = self._share(centred(predicted), mistake.is_rounding)
            if share is None:
                continue
            known = None if self.logits is None else share
            found = Explanation(mistake.cause, mistake.text, known, len(predicted), extent)
            if extent != "one" or found.badness < ONCE_EXPLAINED_SHARE:
                return found
        return None

    def _share(self, predicted: Tensor, is_rounding: bool) -> float | None:
        """Returns the error of the prediction of the first outputs, `(n, vocab)`, as a share of the
        reference's error; None if it is too large for an explanation. NaN explains nothing: its argmax
        is any token."""
        num = len(predicted)
        if predicted.isnan().any():
            return None
        if self.logits is None:
            fits = torch.equal(predicted.argmax(-1), self.tokens[:num])
            return 0.0 if fits else None
        missed, honest = self.logits[:num] - predicted, self.logits[:num] - self.honest[:num]
        if is_rounding:
            share = (missed.pow(2).mean() / honest.pow(2).mean()).sqrt().item()
            return share if share < ROUNDING_SHARE else None
        share = (missed.abs().max() / honest.abs().max()).item()
        is_close = bool(missed.abs().max() <= self.tolerance) and share < 0.3
        return share if share < EXPLAINED_SHARE or is_close else None


Family = Callable[[Suspect], Iterator[Mistake]]
OWN = (position_mistakes, mask_mistakes, feeding_mistakes, storage_mistakes, precision_mistakes)
OTHERS = (routing_mistakes, leak_mistakes, stale_mistakes)
# Mistakes that leave the logits right.
WITH_RIGHT_LOGITS = (routing_mistakes, precision_mistakes)


def explain(reruns: Reruns, suspect: Suspect, observed: Observed) -> Explanation | None:
    """Returns the mistake that explains the answer best; None if none does. If the request alone is
    answered rightly, mistakes that involve other requests are tried first, else last."""
    is_right_alone = bool(reruns.is_right.get(Without.NEIGHBOURS))
    rerunner, subject = reruns.rerunner, reruns.rerunner.trial.subject
    if carries_states(subject):
        replay = StateReplay(subject, suspect)
        return _best(rerunner, observed, ((m, replay.predictions(m)) for m in state_mistakes(replay)))
    own: tuple[Family, ...] = (*OWN, partial(part_mistakes, subject))
    others: tuple[Family, ...] = (partial(expert_mistakes, subject), *OTHERS)
    groups = [others, own] if is_right_alone else [own, others]
    if not reruns.movers:  # what a neighbour says is no matter of pads
        # Alone, or in a packed batch, there are no pads: they are tried last.
        has_pads = is_right_alone and not suspect.is_continuous
        groups.insert(0 if has_pads else 2, (padding_mistakes,))
    if reruns.is_right.get(Without.ADAPTERS):
        groups.insert(0, (partial(adapter_mistakes, reruns.workloads),))
    if observed.logits is None and _are_right(reruns, observed):
        groups = [WITH_RIGHT_LOGITS]
    elif observed.logits is None and is_right_alone:
        groups.remove(own)  # a few tokens fit many mistakes: only those that need the others
    once: Explanation | None = None  # of the first wrong output alone
    for group in groups:
        mistakes = chain.from_iterable(family(suspect) for family in group)
        tried = ((each, _predictions(subject, suspect, observed, each)) for each in mistakes)
        best = _best(rerunner, observed, tried)
        if best is not None and best.num_outputs == len(observed.tokens):
            return best
        once = once or best
    return once


def _are_right(reruns: Reruns, observed: Observed) -> bool:
    completion, step = reruns.answer_in(reruns.calls), reruns.symptom.step
    if completion is None or completion.logits is None or len(completion.logits) <= step:
        return False
    shown = centred(completion.logits[step])
    return bool((shown - observed.honest[0]).abs().max() <= observed.tolerance)


def evidence_of(reruns: Reruns) -> tuple[Suspect, Observed] | None:
    """Returns the answer to explain and what was observed; None if the reference cannot repeat it: no
    mistake of the list makes logits that are not finite."""
    trial, calls, symptom = reruns.rerunner.trial, reruns.calls, reruns.symptom
    subject = trial.subject
    has_states = carries_states(subject)
    if not (has_states or subject.layer_kinds <= {FULL, SLIDING}):
        return None  # the table knows the keys of these two kinds
    table = cell_table_of([(c.workload, c.completions, c.schedule()) for c in calls])
    completion = reruns.answer_in(calls)
    if table is None or completion is None:
        return None
    seq = next(
        number
        for number, fed in enumerate(table.sequences)
        if fed.call == symptom.call and fed.request.request_id == symptom.request.request_id
    )
    cells = [s.cell for s in table.samples if s.seq == seq and s.output >= symptom.step]
    cells = cells[: len(completion.token_ids) - symptom.step]
    if cells and has_states:
        ends = {each.last_cell for each in passes_around(table, seq, cells[0])}
        cells = [*takewhile(ends.__contains__, cells)]
    if not cells:
        return None
    window = _window(subject)
    honest = honest_view(table, torch.tensor(cells), window, subject.layer_kinds)
    only_window = None if honest.within else window
    is_continuous = Capability.SCHEDULING in trial.capabilities
    suspect = Suspect(table, seq, honest, only_window, reruns.here.config, is_continuous)
    exact = centred(
        StateReplay(subject, suspect).logits(Change()) if has_states else logits_of(subject, honest)
    )
    end = symptom.step + len(cells)
    tokens = torch.tensor(completion.token_ids[symptom.step : end])
    given = None if completion.logits is None else completion.logits[symptom.step : end]
    if given is not None and not bool(torch.isfinite(given).all()):
        return None
    believed = _believed(given, tokens, exact)
    return suspect, Observed(tokens, believed, exact, tolerance=1.5 * trial.oracle.logit_bound)


def _believed(given: Tensor | None, tokens: Tensor, exact: Tensor) -> Tensor | None:
    """Returns the engine's logits, centred, `(n, vocab)`; None where its wrong tokens were not chosen
    from them, so that only tokens can be compared."""
    if given is None or len(given) != len(tokens):
        return None
    is_argmax = torch.equal(given.cpu().argmax(-1), tokens)
    return centred(given) if is_argmax or torch.equal(exact.argmax(-1), tokens) else None


def _window(subject: ModelUnderTest) -> int | None:
    if subject.layer_kinds and SLIDING not in subject.layer_kinds:
        return None
    return getattr(subject.model.config.get_text_config(), "sliding_window", None)


def _best(
    rerunner: Rerunner, observed: Observed, tried: Iterable[tuple[Mistake | StateMistake, Predictions]]
) -> Explanation | None:
    """Returns the mistake that misses least, of those that explain all outputs if there is one.
    Earlier ones are more common, so a later one must be clearly better to replace them."""
    best: Explanation | None = None
    for mistake, predictions in rerunner.in_time(tried):
        found = observed.explanation(mistake, predictions)
        if found and (best is None or found.is_better(best)):
            best = found
        is_whole = best is not None and best.num_outputs == len(observed.tokens)
        if best and is_whole and CLEARLY * best.badness <= ROUNDING_LEAVES:
            break  # no badness is smaller than that
    return best


def _predictions(
    subject: ModelUnderTest, suspect: Suspect, observed: Observed, mistake: Mistake
) -> Predictions:
    """Yields what the reference gives with the mistake at all steps, then from the first wrong output
    on, then at that output only: some mistakes are made rarely."""
    if mistake.view.is_same(suspect.honest):
        return
    yield "all", logits_of(subject, mistake.view)
    if observed.logits is None or mistake.is_rounding:
        return
    step = suspect.table.step
    first_step = step[suspect.honest.samples[0]]
    yield "later", logits_of(subject, _limited(mistake.view, suspect, step >= first_step))
    once = _limited(mistake.view, suspect, step == first_step)
    yield "one", logits_of(subject, replace(once, samples=once.samples[:1]))


def _limited(view: View, suspect: Suspect, where: Tensor) -> View:
    """Returns the view with the mistake restricted to the queries `where`, bool `(num_cells,)`."""
    honest, size = suspect.honest, suspect.table.num_cells
    visible = view.visible.clone()
    visible[:size] = False
    visible[:size, :size] = honest.visible
    visible[:size][where] = view.visible[:size][where]
    token, position, variant = view.token.clone(), view.position.clone(), view.variant.clone()
    variant[:size] = torch.where(where, view.variant[:size], honest.variant)
    token[:size] = torch.where(where, view.token[:size], honest.token)
    position[:size] = torch.where(where, view.position[:size], honest.position)
    everything = torch.ones(size, size, dtype=torch.bool)
    added = pad(where, (0, len(view.visible) - size), value=True)  # substitutes are the view's
    within = {
        kind: torch.where(
            added[:, None],
            view.grown(view.within.get(kind, everything)),
            view.grown(honest.within.get(kind, everything)),
        )
        for kind in {*honest.within, *view.within}
    }
    seen = replace(view, visible=visible, within=within)
    return replace(seen, token=token, position=position, variant=variant)


def rounding_of(
    subject: ModelUnderTest, suspect: Suspect, observed: Observed
) -> tuple[float, bool] | None:
    """Compares how the answer is off with the answer that bfloat16 arithmetic gives: by how many times
    as much, and whether in about the same direction, since weights are rounded alike in every order of
    sums. None if there are no logits to compare."""
    if carries_states(subject) or observed.logits is None:
        return None
    low = centred(logits_of(subject, suspect.honest, torch.bfloat16)) - observed.honest
    off = observed.logits - observed.honest
    sizes = low.norm().item(), off.norm().item()
    if not all(sizes):
        return None
    return sizes[1] / sizes[0], (low * off).sum().item() > ALIKE * sizes[0] * sizes[1]
