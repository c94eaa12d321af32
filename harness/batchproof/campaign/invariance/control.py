"""The negative control of every run: what must differ does.

* Another last token of the prompt must get grade `-`.
* An ulp of noise on the logits of an answer must cost grades B and S, and keep E.

Without these a grade proves nothing: an engine that answers every prompt alike, or a comparison that
sees nothing, would be invariant.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from batchproof.campaign.invariance.grades import Answer, Grade, graded
from batchproof.campaign.invariance.serving import Measured
from batchproof.campaign.invariance.settings import LENGTHS, Contents, one_call


def failed_control(measured: Measured, contents: Contents) -> str:
    """Returns which control failed, and how; empty if all is well. Raises what serving raises."""
    kept, others = contents.kept(LENGTHS[-1]), contents.neighbours(2)
    altered = contents.with_last_token_changed(kept)
    answer, other = (
        measured.serve(one_call([each, *others]), each.prompt_token_ids).answer
        for each in (kept, altered)
    )
    return _prompt_unseen(measured, answer, other) or _noise_misjudged(measured, answer)


def _prompt_unseen(measured: Measured, answer: Answer, other: Answer) -> str:
    """Returns how answers to different prompts are not told apart."""
    grade = graded(measured.oracle, answer, other, lambda: other).grade
    if grade is Grade.NONE:
        return ""
    return f"another last token of the prompt gets grade {grade.letter}, but should get -"


def _noise_misjudged(measured: Measured, answer: Answer) -> str:
    """Returns how an ulp of noise is not graded as rounding; empty without logits."""
    if answer.logits is None:
        return ""
    noisy, noisier = (with_noise(answer, seed) for seed in (1, 2))
    for keeps_shapes in (False, True):
        grade = graded(measured.oracle, answer, noisy, lambda: noisier, keeps_shapes).grade
        if grade is not Grade.WITHIN_E:
            return f"an ulp of noise on the logits gets grade {grade.letter}, but should get E"
    return ""


def with_noise(answer: Answer, seed: int) -> Answer:
    """Returns the answer with about half of its logits moved up by one ulp of float32."""
    assert answer.logits is not None, "without logits there is nothing to move"
    chosen = torch.rand(answer.logits.shape, generator=torch.Generator().manual_seed(seed)) < 0.5
    up = torch.nextafter(answer.logits, torch.tensor(float("inf")))
    return replace(answer, logits=torch.where(chosen, up, answer.logits))
