"""Continuous batching over ragged batches: the simplest engine that has it."""

from batchproof_engines.ragged.engine import ragged

__all__ = ["ragged"]
