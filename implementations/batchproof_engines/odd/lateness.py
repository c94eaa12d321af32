"""Tokens that are read late, as an engine does that plans a step while the device works on another."""

from __future__ import annotations

from batchproof_engines.late import LateEngine
from batchproof_engines.odd.oddity import odd


@odd
class EosReadOneStepLate(LateEngine):
    """An EOS is read one step late, as declared: one row is fed in vain, and the slot filled later."""
