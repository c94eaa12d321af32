"""Mistakes in logits that are returned beside right tokens: of which stage, row or request they are."""

from collections.abc import Iterator

import torch
from torch import Tensor

from batchproof.checks.answers import of_each, slack
from batchproof.diagnosis.hypotheses import Answer, Hypothesis
from batchproof.findings.causes import Cause
from batchproof.oracle.choosing import STAGES, is_drawn, processed, sampling_of
from batchproof.oracle.oracle import centred


def returned_mistakes(own: Answer) -> Iterator[Hypothesis]:
    """Yields the mistakes; places are output steps."""
    given, values = own.completion.logits, processed(own.logits, own.request, own.tokens)
    regret = values.amax(-1) - of_each(values, own.tokens)
    is_chosen = is_drawn(own.request) or not bool((regret > 2 * slack(own.request, own.oracle)).any())
    if given is None or given.shape != own.logits.shape or not is_chosen:
        yield Hypothesis("", frozenset())
        return
    shown, bound = centred(given), 1.5 * own.oracle.logit_bound

    def missed(rows: Tensor) -> frozenset[int]:
        off = (shown - centred(rows)).abs().amax(-1)
        return frozenset((~(off <= bound)).nonzero()[:, 0].tolist())

    wrong = missed(own.logits)
    yield Hypothesis("", wrong)
    values = own.logits
    for name, stage in STAGES.items():
        values = stage(values, own.request, own.past)
        if name in sampling_of(own.request).changed:
            yield Hypothesis(f"the logits returned are those behind {name}", missed(values))
    yield Hypothesis("the logits of the step before are returned", missed(own.logits.roll(1, 0)))
    yield Hypothesis("the logits of the step behind are returned", missed(own.logits.roll(-1, 0)))
    whose = {f"those of {each.request.request_id!r}": [each] for each in own.others}
    for words, others in (*whose.items(), ("those of other requests", own.others)):
        rows = centred(torch.cat([own.logits, *(each.logits for each in others)]))
        of_none = (at for at in wrong if not ((rows - shown[at]).abs().amax(-1) <= bound).any())
        mistake = f"the logits returned were overwritten by {words}"
        yield Hypothesis(mistake, frozenset(of_none), cause=Cause.ROUTING)
