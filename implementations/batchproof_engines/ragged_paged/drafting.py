"""Speculative decoding: where drafts come from, and how many of them hold.

    schedule -> drafted: a decode gets as many drafts as budget, blocks and cap have room for
             -> one pass over all rows, which chooses a token behind each token of such a row
             -> settled: drafts that equal the choice before them stay, up to the first that does not

Drafts that are rejected leave keys behind, which the next step overwrites before anything reads them.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from batchproof.decoding.speculation import Head, head_of
from batchproof_engines.ragged.scheduler import SchedulerOutput, Sequence
from batchproof_engines.ragged_paged.scheduler import PagedScheduler
from batchproof_engines.stopping import num_right

NGRAM_LENS = (3, 2)  # the longer one, if it occurred before


class NgramDrafter:
    """Drafts what followed the last earlier occurrence of a sequence's last tokens: prompt lookup
    decoding (Saxena, 2023)."""

    def __call__(self, sequence: Sequence, num: int) -> list[int]:
        """Returns up to `num` tokens behind those of a sequence."""
        token_ids = sequence.token_ids
        for length in NGRAM_LENS:
            last = token_ids[-length:]
            for end in range(len(token_ids) - 1, length - 1, -1):
                if token_ids[end - length : end] == last:
                    return token_ids[end : end + num]
        return []


@torch.inference_mode()
def drafts_of_model(draft: PreTrainedModel, sequence: Sequence, num: int) -> list[int]:
    """Returns `num` tokens of a draft model, which decodes greedily by a pass over all tokens each."""
    tokens = list(sequence.token_ids)
    for _ in range(num):
        fed = torch.tensor([tokens], device=draft.device)
        logits: Tensor = draft(input_ids=fed, use_cache=False).logits
        tokens.append(int(logits[0, -1].argmax()))
    return tokens[len(sequence.token_ids) :]


HiddenStates = Callable[[Sequence], Tensor]  # of a sequence's fed tokens: (1, n, width)


class HeadDrafter:
    """Lets a draft head go on from the model's hidden states, as EAGLE and MTP do: the first draft from
    the last of the model's own, each other one from that of the head."""

    def __init__(self, head: Head, output: nn.Module, hidden: HiddenStates) -> None:
        self.head, self.output, self.hidden = head, output, hidden

    @torch.inference_mode()
    def __call__(self, sequence: Sequence, num: int) -> list[int]:
        """Returns `num` tokens, by a pass of the head over all tokens each; none behind a first token,
        as no hidden state is known."""
        if len(sequence.token_ids) == 1:
            return []
        states, tokens = self.hidden(sequence), list(sequence.token_ids)
        for _ in range(num):
            made = self.made(tokens, states)
            states = self.chained(states, made)
            tokens.append(int(self.output(self.head.logits_input(made[0, -1])).argmax()))
        return tokens[len(sequence.token_ids) :]

    def made(self, tokens: list[int], states: Tensor) -> Tensor:
        """Returns the head's hidden states (1, n, width) for all tokens but the first."""
        return self.head.chained(torch.tensor([tokens[1:]], device=states.device), states)

    def chained(self, states: Tensor, made: Tensor) -> Tensor:
        return torch.cat((states, made[:, -1:]), 1)


class Speculator:
    """Extends the rows of a step by up to `most` drafts, and judges afterwards which of them hold.
    They come from the draft's head if it has one, from the draft, or without one from n-grams."""

    head_drafter_class = HeadDrafter

    def __init__(
        self, draft: PreTrainedModel | None, most: int, output: nn.Module, hidden: HiddenStates
    ) -> None:
        self.most = most
        head = None if draft is None else head_of(draft)
        self.drafter: Callable[[Sequence, int], list[int]] = NgramDrafter()
        if head is not None:
            self.drafter = self.head_drafter_class(head, output, hidden)
        elif draft is not None:
            self.drafter = partial(drafts_of_model, draft)

    @property
    def reads_hidden_states(self) -> bool:
        """Whether drafts come from a head."""
        return isinstance(self.drafter, HeadDrafter)

    def drafted(self, plan: SchedulerOutput, scheduler: PagedScheduler) -> SchedulerOutput:
        """Returns the plan with drafts in its decodes; they are tokens of their sequences until the
        step is settled."""
        scheduled, rows = list(plan.scheduled), list(plan.rows)
        for place, num in enumerate(scheduler.room_for_drafts(plan, self.most)):
            (sequence, num_new), row = scheduled[place], rows[place]
            drafts = self.drafter(sequence, num) if num else []
            sequence.token_ids += drafts
            scheduled[place] = sequence, num_new + len(drafts)
            query_len = row.query_len + len(drafts)
            rows[place] = replace(row, query_len=query_len, num_drafted=len(drafts))
        return replace(plan, scheduled=tuple(scheduled), rows=tuple(rows))

    def verified(self, sequences: Seq[Sequence], choices: Seq[list[int]]) -> list[int]:
        """Returns how many of its choices each sequence keeps, at least one. Takes rejected drafts off
        the sequences, so that all of their tokens but the last choice are there."""
        kept: list[int] = []
        for sequence, chosen in zip(sequences, choices, strict=True):
            first = len(sequence.token_ids) - len(chosen) + 1
            drafts = sequence.token_ids[first:]
            num = self.num_right(sequence, drafts, chosen)
            sequence.token_ids[first:] = chosen[: num - 1]
            kept.append(num)
        return kept

    def num_right(self, sequence: Sequence, drafts: list[int], choices: list[int]) -> int:
        return num_right(sequence.request, drafts, choices)
