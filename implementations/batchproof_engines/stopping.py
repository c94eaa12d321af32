"""Where an answer ends besides its EOS ids and its cap. Imports no torch, as schedulers import it."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from batchproof.api import Request


def stops(request: Request, output_token_ids: Seq[int]) -> bool:
    """Returns whether an answer ends in one of the request's stop sequences."""
    asked = request.sampling
    if asked is None or len(output_token_ids) < asked.min_tokens:
        return False
    return any(tuple(output_token_ids[-len(each) :]) == each for each in asked.stop_token_sequences)
