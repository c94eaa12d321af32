"""The cause that goes with a broken promise, where nothing more is known."""

from __future__ import annotations

from collections.abc import Mapping

from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise

BY_PROMISE: Mapping[Promise, Cause] = {
    Promise.P2: Cause.CAP,
    Promise.P3: Cause.EOS,
    Promise.P4: Cause.ORDER,
    Promise.P6: Cause.MASK,
    Promise.P7: Cause.POSITION,
    Promise.P9: Cause.SCHEDULING,
    Promise.P10: Cause.LIVENESS,
    Promise.P11: Cause.ACCOUNTING,
    Promise.P12: Cause.INPUT,
    Promise.P13: Cause.CANCEL,
    Promise.P14: Cause.STREAM,
    Promise.P15: Cause.SIDE_EFFECT,
    Promise.P16: Cause.RACE,
    Promise.P17: Cause.SPECULATION,
    Promise.P18: Cause.LOGPROBS,
    Promise.P19: Cause.SAMPLING,
    Promise.P20: Cause.SHAPES,
}
