"""Finds the mistake with recurrent states under which the reference gives the engine's answer."""

from __future__ import annotations

import torch

from batchproof.diagnosis.explanation import Explanation, Observed
from batchproof.diagnosis.mistake import Suspect
from batchproof.diagnosis.rerunner import OutOfTimeError, Rerunner
from batchproof.diagnosis.state_changes import StateMistake
from batchproof.diagnosis.state_mistakes import state_mistakes
from batchproof.diagnosis.state_replay import Pass, StateReplay
from batchproof.findings.causes import Cause
from batchproof.oracle.oracle import centred


def explain_by_states(rerunner: Rerunner, suspect: Suspect, observed: Observed) -> Explanation | None:
    """Returns the first mistake that explains all outputs from the first wrong one on, else the first
    that explains that one alone; None if none does."""
    replay = StateReplay(rerunner.trial.subject, suspect.table)
    passes, best = replay.passes(suspect.seq), None
    try:
        for mistake in state_mistakes(replay, suspect):
            rerunner.check_time()
            found = _explanation(replay, passes, suspect, observed, mistake)
            if found and found.num_outputs == len(observed.tokens) > 1:
                return found
            best = best or found
    except OutOfTimeError:
        pass  # the best so far is returned
    return best


def _explanation(
    replay: StateReplay, passes: list[Pass], suspect: Suspect, observed: Observed, mistake: StateMistake
) -> Explanation | None:
    logits = replay.logits(passes, mistake.change)
    cells = [cell for cell in suspect.honest.samples.tolist() if cell in logits]
    predicted = centred(torch.stack([logits[cell] for cell in cells]))
    for seen, extent in ((observed, "all"), (observed.first(), "one")):
        if len(predicted) < len(seen.tokens):
            continue
        share = seen.share(predicted[: len(seen.tokens)], mistake.is_rounding)
        if share is not None:
            known = None if observed.logits is None else share
            return Explanation(Cause.STATE, mistake.text, known, len(seen.tokens), extent)
    return None
