"""Parses the answers of a server into token ids. What cannot be read is an error, never a guess."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field

from batchproof.api import FinishReason, Request, TokenLogprobs
from batchproof.records.decode import DecodeError, decode
from batchproof_engines.adapters.openai.client import Refused, refusal_in, shown
from batchproof_engines.adapters.word_tokenizer import id_of, word_len, word_of

TOKEN_ID_PREFIX = "token_id:"  # precedes an id in `logprobs.tokens` of vLLM
FIELDS = {"ids": "token_ids", "logprobs": "logprobs.tokens", "verbose": "__verbose.tokens"}
Token = tuple[int, TokenLogprobs | None]
T = TypeVar("T")


class UnreadableAnswer(ValueError):
    """An answer that cannot be read; the message is a predicate whose subject is "the server"."""


@dataclass(frozen=True)
class _Choice:
    index: Any = None
    text: str = ""
    token_ids: tuple[int, ...] | None = None
    logprobs: Any = None
    finish_reason: Literal["stop", "length"] | None = None
    stop_reason: Any = None  # of vLLM: the id or text that ended the answer
    matched_stop: Any = None  # of SGLang, the same


@dataclass(frozen=True)
class _Verbose:
    """What llama.cpp adds to an answer on request: all tokens, also those of a stop text."""

    tokens: tuple[int, ...] | None = None


@dataclass(frozen=True)
class _Answer:
    choices: tuple[_Choice, ...] | None = None
    usage: Any = None
    timings: Any = None  # of llama.cpp
    error: Any = None
    verbose: Annotated[_Verbose | None, Field(alias="__verbose")] = None


@dataclass(frozen=True)
class _Names:
    """The field of `logprobs` that identifies tokens."""

    tokens: tuple[str, ...]


@dataclass(frozen=True)
class _Logprobs:
    token_logprobs: tuple[float, ...]
    top_logprobs: tuple[dict[str, float], ...]


@dataclass(frozen=True)
class _Likely:
    """A token of `logprobs.content`: its name and, of llama.cpp, its id."""

    token: str
    logprob: float
    id: int | None = None


@dataclass(frozen=True)
class _Entry(_Likely):
    top_logprobs: tuple[_Likely, ...] = ()


@dataclass(frozen=True)
class _Content:
    """`logprobs` as chat completions have them, and llama.cpp's completions too."""

    content: tuple[_Entry, ...]


def _entries(logprobs: dict[str, Any]) -> tuple[_Entry, ...]:
    return _read(_Content, logprobs, "logprobs.").content


def _read(kind: type[T], value: object, place: str = "") -> T:
    """Returns the part of an answer that is at this place. Fields that are not read may be anything."""
    try:
        return decode(kind, value, is_closed=False)
    except DecodeError as error:
        raise UnreadableAnswer(f"answered with an object that does not fit: {place}{error}") from None


class AnswerParser:
    """Parses one answer, whole or piece by piece.

    `how` is ids (`token_ids`), logprobs (`logprobs.tokens` or `logprobs.content`), words (`text`), or
    auto: the first of them in the answer; or verbose (`__verbose.tokens`). `num_top` is
    how many likeliest tokens the request asks for; None: no logprobs.
    """

    def __init__(self, vocab_size: int, how: str = "auto", num_top: int | None = None) -> None:
        self._vocab_size = vocab_size
        self._how = how
        self._num_top = num_top
        self._rest = ""  # the beginning of a word
        self._last_word = ""  # if no blank has followed it yet
        self.num_read = 0
        self.finish_reason: FinishReason | None = None
        self.has_cached = False  # whether tokens of the prompt were not computed for it
        self._num_made: object = None  # by the server's own count
        self._named_eos: tuple[object, ...] = ()

    def feed(self, answer: object, number: int | None = None) -> list[Token]:
        """Returns the next tokens, of an answer or of an event of a stream, with their logprobs where
        these are asked for and given. `number` is that of the choice in an answer to several requests,
        whose `usage` counts the tokens of all; None: there is but one. Raises `UnreadableAnswer`, and
        `Refused` for an error in place of the first that refuses the request."""
        read = _read(_Answer, answer)
        self.has_cached |= _has_cached(read.usage, read.timings)
        if read.error is not None and not read.choices:
            if self.num_read == 0 and (why := refusal_in(read.error)) is not None:
                raise Refused(why)
            raise UnreadableAnswer(f"answered with an error: {shown(str(read.error))}")
        if isinstance(read.usage, dict) and number is None:
            self._num_made = read.usage.get("completion_tokens", self._num_made)
        if read.choices == () and read.usage is not None:
            return []  # the last event of a stream may hold nothing but the usage
        own = [each for each in read.choices or () if number in (None, each.index)]
        if read.choices and not own:
            return []  # a piece of others
        if len(own) != 1:
            raise UnreadableAnswer(f"answered without exactly one choice: {shown(str(answer))}")
        (choice,) = own
        tokens = self._tokens(choice, read.verbose)
        self.num_read += len(tokens)
        if choice.finish_reason is not None:
            self.finish_reason = FinishReason(choice.finish_reason)
            self._named_eos = (choice.stop_reason, choice.matched_stop)
        if self._num_top is None or not isinstance(choice.logprobs, dict):
            return [(token, None) for token in tokens]
        return list(zip(tokens, self._logprobs(tokens, choice.logprobs), strict=True))

    def end(self, request: Request) -> list[int]:
        """Returns the EOS that the server has counted but omitted, if it is known; called after the
        last piece.

        It is known if the server has named it or only one was asked for. Raises `UnreadableAnswer`.
        """
        if self._rest:
            self._id_of(self._rest)  # too short for a word
        if self.finish_reason is None:
            raise UnreadableAnswer(
                f"ended its answer after {self.num_read} of {request.max_new_tokens} tokens without a "
                f"finish_reason"
            )
        is_one_short = self._num_made == self.num_read + 1
        if self.finish_reason is not FinishReason.STOP or not is_one_short:
            return []
        known = sorted(request.eos_token_ids)
        words = {token: word_of(token, self._vocab_size) for token in known}
        named = [token for token in known if {token, words[token]} & {*self._named_eos}]
        return named[:1] or (known if len(known) == 1 else [])

    def _tokens(self, choice: _Choice, verbose: _Verbose | None) -> list[int]:
        if self._how == "verbose" and verbose is not None and verbose.tokens is not None:
            return list(verbose.tokens)
        if self._how in ("auto", "ids") and choice.token_ids is not None:
            return list(choice.token_ids)  # the suite judges whether they exist
        if self._how in ("auto", "logprobs") and isinstance(choice.logprobs, dict):
            if "content" in choice.logprobs:
                return [self._id_in(each) for each in _entries(choice.logprobs)]
            named = _read(_Names, choice.logprobs, "logprobs.").tokens
            return [self._id_of(each) for each in named]
        if self._how in ("auto", "words"):
            return self._words(choice.text)
        if choice.text:
            raise UnreadableAnswer(
                f"answered without {FIELDS[self._how]}, which tokens={self._how} reads"
            )
        return []

    def _logprobs(self, tokens: list[int], given: dict[str, Any]) -> list[TokenLogprobs]:
        """Returns the logprobs of tokens. The chosen one is among the likeliest or behind them."""
        own: Sequence[float]
        likeliest: list[list[tuple[int, float]]]
        if "content" in given:
            entries = _entries(given)
            own = [each.logprob for each in entries]
            likeliest = [
                [(self._id_in(one), one.logprob) for one in each.top_logprobs] for each in entries
            ]
        else:
            read = _read(_Logprobs, given, "logprobs.")
            own = read.token_logprobs
            likeliest = [
                [(self._id_of(name), value) for name, value in each.items()]
                for each in read.top_logprobs
            ]
        if not len(own) == len(likeliest) == len(tokens):
            raise UnreadableAnswer(
                f"answered with {len(tokens)} tokens, {len(own)} token_logprobs and {len(likeliest)} "
                f"top_logprobs"
            )
        num_top = self._num_top or 0
        found = []
        for token, value, named in zip(tokens, own, likeliest, strict=True):
            top = sorted(named, key=lambda pair: -pair[1])
            ids = [each for each, _ in top[: max(num_top, 1)]]
            rank = ids.index(token) + 1 if token in ids else None
            found.append(TokenLogprobs(value, rank, tuple(top[:num_top])))
        return found

    def _words(self, text: str) -> list[int]:
        """Returns the tokens of all whole words so far; words may be split across pieces."""
        if not text:
            return []
        if self._last_word and not text[0].isspace():
            text = self._last_word + text  # too long for a word
        words = (self._rest + text).split()
        self._rest = self._last_word = ""
        if words and not text[-1].isspace():
            if len(words[-1]) < word_len(self._vocab_size):
                self._rest = words.pop()
            else:
                self._last_word = words[-1]
        return [self._id_of(word) for word in words]

    def _id_in(self, entry: _Likely) -> int:
        return self._id_of(entry.token) if entry.id is None else entry.id

    def _id_of(self, name: str) -> int:
        """Returns the token of this name. Raises `UnreadableAnswer` for any other text."""
        digits = name.removeprefix(TOKEN_ID_PREFIX)
        if digits != name and digits.isascii() and digits.isdecimal():
            return int(digits)
        try:
            return id_of(name.strip(), self._vocab_size)
        except ValueError as error:
            raise UnreadableAnswer(f"answered with a text that is no token: {error}") from None


def _has_cached(usage: object, timings: object) -> bool:
    """Returns whether OpenAI's `usage` or llama.cpp's `timings` say that tokens of the prompt were not
    computed for it."""
    details = _field(usage, "prompt_tokens_details")
    return bool(_field(details, "cached_tokens") or _field(timings, "cache_n"))


def _field(value: object, name: str) -> object:
    return value.get(name) if isinstance(value, Mapping) else None
