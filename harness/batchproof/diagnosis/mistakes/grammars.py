"""Mistakes in what a grammar allows: none, another step's, another row's, or another end."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from batchproof.diagnosis.hypotheses import Answer
from batchproof.oracle.choosing import in_grammar

UNHEEDED = "tokens are chosen without the grammar"


def masked(own: Answer, allowed: Tensor) -> Tensor:
    """Returns the logits of the tokens that are allowed, bool `(n, vocab)`."""
    return own.logits.masked_fill(~allowed, -torch.inf)


def grammar_masks(own: Answer) -> Iterator[tuple[str, Tensor]]:
    """Yields mistakes, and which tokens each allows, bool `(n, vocab)`."""
    right = _allowed(own)
    if own.request.grammar is None:
        if any(each.request.grammar for each in own.neighbours):
            yield (
                "no token is allowed, and the first id wins",
                torch.eye(right.shape[1])[[0] * len(right)] > 0,
            )
    else:
        is_end = torch.zeros(right.shape[1], dtype=torch.bool)
        is_end[[each for each in own.request.eos_token_ids if 0 <= each < len(is_end)]] = True
        yield UNHEEDED, torch.ones_like(right)
        yield "the grammar is a step behind", torch.cat((right[:1], right[:-1]))
        yield "an EOS may come within a text", right | is_end
        yield "a text ends where it may", right & (is_end | ~(right & is_end).any(-1, keepdim=True))
    for other in own.others:
        its, whose = other.request.grammar, repr(other.request.request_id)
        if its not in (None, own.request.grammar):
            eos = own.request.eos_token_ids | other.request.eos_token_ids
            changed = replace(own.request, grammar=its, eos_token_ids=eos)
            yield (
                f"tokens follow the grammar of {whose}",
                in_grammar(changed, own.tokens, right.shape[1]),
            )


def masks_of_the_step(own: Answer) -> Iterator[Tensor]:
    """Yields what each other request's grammar allows in the steps that they share, bool `(n, vocab)`;
    in others, and without a grammar, all."""
    for other in own.others:
        masks = _allowed(other)
        places = {each.step: at for at, each in enumerate(other.outputs[: len(masks)])}
        everything = torch.ones(masks.shape[1], dtype=torch.bool)
        steps = [each.step for each in own.outputs]
        yield torch.stack([masks[places[at]] if at in places else everything for at in steps])


def _allowed(own: Answer) -> Tensor:
    return in_grammar(own.request, own.tokens, own.logits.shape[1])
