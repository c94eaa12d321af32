"""The answer to one request as it arrives, in the terms of the contract."""

from typing import Any

from batchproof.api import FinishReason, Request, SamplingParams, TokenEvent, TokenLogprobs
from batchproof_engines.adapters.openai.answer_parser import AnswerParser
from batchproof_engines.adapters.openai.options import Options
from batchproof_engines.stopping import stops


class Answer:
    """`number` is that of its choice where several requests share an exchange."""

    number: int | None = None

    def __init__(self, request: Request, options: Options, vocab_size: int) -> None:
        self.request = request
        self.is_cut = False  # ended here: the rest is not needed
        self._options = options
        asked = request.sampling or SamplingParams()
        self.parser = AnswerParser(vocab_size, options.tokens, asked.logprobs)
        self._tokens: list[int] = []
        self._held: TokenEvent | None = None
        self._is_end = False

    @property
    def is_whole(self) -> bool:
        """Whether the server has sent all of it."""
        return not self.is_cut or self.parser.finish_reason is not None

    def news(self, piece: Any) -> list[TokenEvent]:
        """Returns an event for each token that cannot be the last. Raises as `AnswerParser.feed`
        does."""
        return [event for pair in self.parser.feed(piece, self.number) for event in self._noted(*pair)]

    def end(self) -> list[TokenEvent]:
        """Returns the events that are left once all pieces are there; the last has the finish reason.

        The last token is in the last event, unless it was told before. Raises as `AnswerParser.end`
        does.
        """
        left = [] if self.is_cut else self.parser.end(self.request)
        events = [event for token in left for event in self._noted(token, None)]
        # A server may call both ends by one name where they fall together.
        is_full = len(self._tokens) == self.request.max_new_tokens
        is_both = self._is_end and is_full and self._options.eos_at_cap == "length"
        is_stopped = self.is_cut or (is_both and self.parser.finish_reason is FinishReason.LENGTH)
        reason = FinishReason.STOP if is_stopped else self.parser.finish_reason
        assert reason is not None, "the parser rejects an answer without a reason"
        last = self._held or TokenEvent(self.request.request_id, None)
        return [*events, last._replace(finish_reason=reason)]

    def _noted(self, token: int, logprobs: TokenLogprobs | None) -> list[TokenEvent]:
        """Returns what can be told now; a token that may be the last is held back."""
        if self.is_cut:
            return []
        told = [] if self._held is None else [self._held]
        self._held = TokenEvent(self.request.request_id, token, logprobs=logprobs)
        self._tokens.append(token)
        self._is_end = token in self.request.eos_token_ids or stops(self.request, self._tokens)
        self.is_cut = self._is_end and self._options.is_cut_here(self.request)
        if not self._is_end and len(self._tokens) < self.request.max_new_tokens:
            told.append(self._held)
            self._held = None
        return told
