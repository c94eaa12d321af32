"""Honest engines whose answers are not those of the model as it is served: coarse arithmetic, or other
settings than asked for.

They test `batchproof triage`, which must tell both from corruption. `--engine coarse:KIND-BASE` and
`--engine set:KIND-BASE` select one, such as `coarse:bfloat16-static`.
"""

from batchproof_engines.coarse.arithmetic import COARSE
from batchproof_engines.coarse.settings import SET

__all__ = ["COARSE", "SET"]
