"""Where an answer ends, which may have drafts, and which drafts hold. Imports no torch, as schedulers
import it."""

from collections.abc import Sequence as Seq

from batchproof.api import FinishReason, Request


def finish_reason(request: Request, output_token_ids: Seq[int]) -> FinishReason | None:
    """Returns why an answer ends with its last token, or None if it goes on."""
    if output_token_ids[-1] in request.eos_token_ids or stops(request, output_token_ids):
        return FinishReason.STOP
    return FinishReason.LENGTH if len(output_token_ids) == request.max_new_tokens else None


def stops(request: Request, output_token_ids: Seq[int]) -> bool:
    """Returns whether an answer ends in one of the request's stop sequences."""
    asked = request.sampling
    if asked is None or len(output_token_ids) < asked.min_tokens:
        return False
    return any(tuple(output_token_ids[-len(each) :]) == each for each in asked.stop_token_sequences)


def may_have_drafts(request: Request) -> bool:
    """Returns whether a step may choose several of a request's tokens: logprobs are noted for one, and
    a stop sequence is not looked for in drafts."""
    asked = request.sampling
    return asked is None or (asked.logprobs is None and not asked.stop_token_sequences)


def num_right(request: Request, drafts: Seq[int], choices: Seq[int]) -> int:
    """Returns how many of the choices before each draft and behind the last stay: those behind right
    drafts, up to an EOS."""
    num = 1
    for draft, choice in zip(drafts, choices, strict=False):
        if draft != choice or choice in request.eos_token_ids:
            break
        num += 1
    return num
