"""The negative control of every run: what must differ does.

* Another last token of the prompt must get grade `-`.
* An ulp of noise on the logits of an answer must cost grades B and S, and keep E.

Without these a grade proves nothing: an engine that answers every prompt alike, or a comparison that
sees nothing, would be invariant.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from batchproof.run.invariance.grades import Answer, Grade, graded
from batchproof.run.invariance.serving import serve_setting
from batchproof.run.invariance.settings import LENGTHS, Contents, one_call
from batchproof.run.trial import Trial


def failed_control(trial: Trial, contents: Contents) -> str:
    """Returns which control failed, and how; empty if all is well. Raises what serving raises."""
    kept, others = contents.kept(LENGTHS[-1]), contents.neighbours(2)
    altered = contents.with_last_token_changed(kept)
    answer, other = (
        serve_setting(trial, one_call([each, *others]), each.prompt_token_ids).answer
        for each in (kept, altered)
    )
    grade = graded(trial.oracle, answer, other, lambda: other).grade
    if grade is not Grade.NONE:
        return f"another last token of the prompt gets grade {grade.letter}, but should get -"
    return _noise_misjudged(trial, answer)


def _noise_misjudged(trial: Trial, answer: Answer) -> str:
    """Returns how an ulp of noise is not graded as rounding; empty without logits."""
    if answer.logits is None:
        return ""
    noisy, noisier = (with_noise(answer, seed) for seed in (1, 2))
    for keeps_shapes in (False, True):
        grade = graded(trial.oracle, answer, noisy, lambda: noisier, keeps_shapes).grade
        if grade is not Grade.WITHIN_E:
            return f"an ulp of noise on the logits gets grade {grade.letter}, but should get E"
    return ""


def with_noise(answer: Answer, seed: int) -> Answer:
    """Returns the answer with about half of its logits moved up by one ulp of float32."""
    assert answer.logits is not None, "without logits there is nothing to move"
    chosen = torch.rand(answer.logits.shape, generator=torch.Generator().manual_seed(seed)) < 0.5
    up = torch.nextafter(answer.logits, torch.tensor(float("inf")))
    return replace(answer, logits=torch.where(chosen, up, answer.logits))
