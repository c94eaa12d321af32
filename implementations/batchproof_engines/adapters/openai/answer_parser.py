"""Parses the answers of a server into token ids. What cannot be read is an error, never a guess."""

from __future__ import annotations

from typing import Any

from batchproof.api import FinishReason, Request, TokenLogprobs
from batchproof_engines.adapters.openai.client import shown
from batchproof_engines.adapters.word_tokenizer import id_of, word_len, word_of

TOKEN_ID_PREFIX = "token_id:"  # precedes an id in `logprobs.tokens` of vLLM
REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}
EOS_NAMES = ("stop_reason", "matched_stop")  # of vLLM and SGLang: the id that ended the answer


class UnreadableAnswer(ValueError):
    """An answer that cannot be read; the message is a predicate whose subject is "the server"."""


Token = tuple[int, TokenLogprobs | None]


class AnswerParser:
    """Parses one answer, whole or piece by piece.

    `how` is ids (`token_ids`), logprobs (`logprobs.tokens`), words (`text`), or auto: the first of them
    in the answer. `num_top` is of how many likeliest tokens logprobs are asked for; None: of none.
    """

    def __init__(self, vocab_size: int, how: str = "auto", num_top: int | None = None) -> None:
        self._vocab_size = vocab_size
        self._how = how
        self._num_top = num_top
        self._rest = ""  # text that is not a whole word yet
        self._last_word = ""
        self.num_read = 0
        self.finish_reason: FinishReason | None = None
        self._num_made: int | None = None  # by the server's own count
        self._named_eos: int | None = None

    def feed(self, answer: object) -> list[Token]:
        """Returns the next tokens, of an answer or of an event of a stream, with their logprobs where
        these are asked for and given. Raises `UnreadableAnswer`."""
        if not isinstance(answer, dict):
            raise UnreadableAnswer(
                f"answered with a {type(answer).__name__}, but should answer with an object"
            )
        if answer.get("error") is not None and not answer.get("choices"):
            raise UnreadableAnswer(f"answered with an error: {shown(str(answer['error']))}")
        usage = answer.get("usage")
        if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
            self._num_made = usage["completion_tokens"]
        choices = answer.get("choices")
        if choices == [] and usage is not None:
            return []  # the last event of a stream may hold nothing but the usage
        if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
            raise UnreadableAnswer(f"answered without exactly one choice: {shown(str(answer))}")
        tokens = self._tokens(choices[0])
        self._note_end(choices[0])
        self.num_read += len(tokens)
        logprobs = choices[0].get("logprobs")
        if self._num_top is None or not isinstance(logprobs, dict):
            return [(token, None) for token in tokens]
        return list(zip(tokens, self._logprobs(tokens, logprobs), strict=True))

    def end(self, request: Request) -> list[int]:
        """Returns the EOS that the server has counted but omitted, if it is known; called after the
        last piece.

        It is known if the server has named it or only one was asked for. Raises `UnreadableAnswer`.
        """
        if self._rest.strip():
            raise self._no_word(self._rest.strip())
        if self.finish_reason is None:
            raise UnreadableAnswer(
                f"ended its answer after {self.num_read} of {request.max_new_tokens} tokens without a "
                f"finish_reason"
            )
        is_one_short = self._num_made == self.num_read + 1
        if self.finish_reason is not FinishReason.STOP or not is_one_short:
            return []
        known = sorted(request.eos_token_ids)
        if self._named_eos is not None and self._named_eos in known:
            return [self._named_eos]
        return known if len(known) == 1 else []

    def _tokens(self, choice: dict[str, Any]) -> list[int]:
        logprobs = choice.get("logprobs")
        if self._how in ("auto", "ids") and choice.get("token_ids") is not None:
            return [self._id(each) for each in _listed(choice["token_ids"], "token_ids")]
        if self._how in ("auto", "logprobs") and isinstance(logprobs, dict):
            return [self._named(each) for each in _listed(logprobs.get("tokens"), "logprobs.tokens")]
        text = choice.get("text", "")
        if not isinstance(text, str):
            raise UnreadableAnswer(f"answered with a text of type {type(text).__name__}")
        if self._how not in ("auto", "words"):
            if text:
                field = "token_ids" if self._how == "ids" else "logprobs.tokens"
                raise UnreadableAnswer(f"answered without {field}, which tokens={self._how} reads")
            return []
        return self._words(text)

    def _logprobs(self, tokens: list[int], given: dict[str, Any]) -> list[TokenLogprobs]:
        """Returns the logprobs of tokens. The chosen one is among the likeliest or behind them."""
        own = _listed(given.get("token_logprobs"), "logprobs.token_logprobs")
        likeliest = _listed(given.get("top_logprobs"), "logprobs.top_logprobs")
        if not len(own) == len(likeliest) == len(tokens):
            raise UnreadableAnswer(
                f"answered with {len(tokens)} tokens, {len(own)} token_logprobs and {len(likeliest)} "
                f"top_logprobs"
            )
        num_top = self._num_top or 0
        found = []
        for token, value, named in zip(tokens, own, likeliest, strict=True):
            if not isinstance(named, dict):
                raise UnreadableAnswer(f"answered with top_logprobs that hold {shown(str(named))}")
            top = [(self._named(name), _number(each)) for name, each in named.items()]
            top.sort(key=lambda pair: -pair[1])
            ids = [each for each, _ in top[: max(num_top, 1)]]
            rank = ids.index(token) + 1 if token in ids else None
            found.append(TokenLogprobs(_number(value), rank, tuple(top[:num_top])))
        return found

    def _words(self, text: str) -> list[int]:
        """Returns the tokens of all whole words so far; words may be split across pieces."""
        text, length = self._rest + text, word_len(self._vocab_size)
        tokens: list[int] = []
        while text:
            word = text.lstrip()[:length]
            if self._last_word and not text[0].isspace():
                raise self._no_word(self._last_word + text.split()[0])
            if len(word) < length:
                break
            try:
                tokens.append(id_of(word, self._vocab_size))
            except ValueError:
                raise self._no_word(text.split()[0]) from None
            self._last_word = word
            text = text.lstrip()[length:]
        self._rest = text
        return tokens

    def _no_word(self, word: str) -> UnreadableAnswer:
        last = self._vocab_size - 1
        words = f"{word_of(0, self._vocab_size)} to {word_of(last, self._vocab_size)}"
        what = f"answered with {word[:80]!r}, which is not the word of a token ({words})"
        return UnreadableAnswer(what)

    def _named(self, name: object) -> int:
        if not isinstance(name, str):
            raise UnreadableAnswer(
                f"named a token {name!r} in logprobs.tokens, but should name it by a text"
            )
        digits = name.removeprefix(TOKEN_ID_PREFIX)
        if digits != name and digits.isascii() and digits.isdecimal():
            return self._id(int(digits))
        try:
            return id_of(name.strip(), self._vocab_size)
        except ValueError:
            raise self._no_word(name.strip()) from None

    def _id(self, token_id: object) -> int:
        if type(token_id) is not int:
            raise UnreadableAnswer(f"answered with the token id {token_id!r}, which is not an integer")
        return token_id  # the suite judges whether it exists

    def _note_end(self, choice: dict[str, Any]) -> None:
        reason = choice.get("finish_reason")
        if reason is None:
            return
        if reason not in REASONS:
            raise UnreadableAnswer(
                f"gave the finish_reason {reason!r}, but should give {' or '.join(REASONS)}"
            )
        self.finish_reason = REASONS[reason]
        named = [choice.get(name) for name in EOS_NAMES if type(choice.get(name)) is int]
        self._named_eos = named[0] if named else None


def _number(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise UnreadableAnswer(f"answered with the logprob {value!r}, which is not a number")
    return float(value)


def _listed(value: object, name: str) -> list[object]:
    if not isinstance(value, list):
        raise UnreadableAnswer(
            f"answered with {name} of type {type(value).__name__}, but should answer with a list"
        )
    return value
