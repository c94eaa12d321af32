"""Tokens read late, as by an engine that plans a step while the device works on the one before."""

from batchproof_engines.odd.oddity import odd
from batchproof_engines.ragged.delayed import DelayedEngine


@odd
class EosReadOneStepLate(DelayedEngine):
    """An EOS is read one step late, as declared: one surplus row is fed, and the slot is filled
    later."""
