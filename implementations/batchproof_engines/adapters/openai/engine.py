"""An engine that is a completions server, which gets many requests at once."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from batchproof.api import (
    Completion,
    EngineConfig,
    FinishReason,
    Limits,
    Request,
    SamplingParams,
    TokenEvent,
    duplicate_id,
)
from batchproof_engines.adapters.openai import gbnf
from batchproof_engines.adapters.openai.adapters import KINDS
from batchproof_engines.adapters.openai.answer import Answer
from batchproof_engines.adapters.openai.answer_parser import UnreadableAnswer
from batchproof_engines.adapters.openai.client import PATH, EngineFailed, Exchange, Refused, Server
from batchproof_engines.adapters.openai.options import Options
from batchproof_engines.adapters.openai.saved_slots import SavedSlots
from batchproof_engines.adapters.openai.traffic import Traffic
from batchproof_engines.adapters.siblings import siblings_in
from batchproof_engines.completions import completion_of, with_refused

if TYPE_CHECKING:
    from transformers import PreTrainedModel


CUT_HERE = (
    "EOS ids are applied by the adapter, which cuts an answer at the first of them and calls it stop: "
    "how the server stops is not tested."
)
BY_WORDS = (
    "EOS ids and stop sequences are sent as stop texts, which are their words, and applied by the "
    "server. An EOS that it counts but leaves out of its answer is put in, if it names it or only one "
    "was asked for. Its finish reason is passed on. An answer with logprobs is cut by the adapter."
)
PASSED_ON = (
    "EOS ids are applied by the server. One that it counts but leaves out of its answer is put in, if "
    "it names it or only one was asked for. Its finish reason is passed on."
)
NOT_FOUND = 404  # of a model, and so of an adapter
NO_IDS = (
    "The interface has no request ids: the adapter refuses the later of two requests with one id, and "
    "a request that only max_model_len forbids."
)
JOIN_LIMIT_S = 5.0  # for a thread whose connection was cut

Job = tuple[Exchange, list[Answer]]  # with the requests that share it
News = tuple[Answer, TokenEvent | Exception | None]  # None: its exchange is closed


class _Stream(NamedTuple):
    """A live request, and what has arrived and was not told."""

    answer: Answer
    exchange: Exchange
    thread: threading.Thread
    news: deque[TokenEvent | Exception]


class OpenAIEngine:
    """Sends each request on a connection of its own; the server forms the batches.

    `generate` asks with `concurrency` threads at once. Where answers are streams, it can be stepped:
    each request that is added has a thread of its own, and a step tells one event of each. The server
    does not wait for it: what arrives meanwhile is told by later steps, so that an abort at a step is
    one, however late this process is.
    """

    def __init__(
        self, server: Server, options: Options, model: PreTrainedModel, config: EngineConfig
    ) -> None:
        self.capabilities = options.capabilities
        self.sampling_fields = options.sampling_fields
        self.sampling_limits = options.limits
        self.grammar_kinds = frozenset(gbnf.KINDS)
        who_stops = {"client": CUT_HERE, "stop": BY_WORDS}.get(options.eos, PASSED_ON)
        self.notes: tuple[str, ...] = (who_stops, NO_IDS)
        self.release = options.release
        self._server = server
        self._options = options
        self._servers_limits = Limits.of(model, EngineConfig())  # the server checks them by itself
        self._limits = Limits.of(model, config)  # with max_model_len, which the server does not know
        self._streams: dict[str, _Stream] = {}
        self._news: SimpleQueue[News] = SimpleQueue()
        self._undelivered: list[TokenEvent] = []  # of requests that were refused or aborted
        self._traffic = Traffic()
        self._slots = SavedSlots(server) if options.restored else None
        self._adapters = None if options.adapters == "none" else KINDS[options.adapters](server)
        self.count_others: Callable[[], dict[str, int]] = dict  # what else is known of the server

    @property
    def counters(self) -> dict[str, int]:
        slots = {} if self._slots is None else self._slots.counts
        return {**self._traffic.counts, **slots, **self.count_others()}

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Raises `EngineFailed` if a request gets no valid completion: those in progress are cut then,
        and no others are sent."""
        if self.has_unfinished:
            raise RuntimeError("generate was called while requests given by add are unfinished")
        refusals = self._refusals(requests)
        return with_refused(
            requests,
            refusals,
            lambda good: map(completion_of, self._served(list(map(self._answer, good)))),
        )

    @property
    def has_unfinished(self) -> bool:
        return bool(self._streams or self._undelivered)

    def add(self, request: Request) -> None:
        if request.request_id in self._streams:
            raise ValueError(duplicate_id(request.request_id))
        refusal = self._refusal(request)
        if refusal is not None:
            self._undelivered.append(TokenEvent.refused(request.request_id, refusal))
            return
        answer = self._answer(request)
        exchange = self._exchange(request, self._body(request))
        thread = self._listener(deque([(exchange, [answer])]), self._news)
        self._streams[request.request_id] = _Stream(answer, exchange, thread, deque())

    def step(self) -> list[TokenEvent]:
        """Returns the next event of each request of which one has arrived; waits if there is none.
        Raises `EngineFailed` after cutting all connections."""
        events, self._undelivered = self._undelivered, []
        try:
            with suppress(Empty):
                while self._streams:
                    has_news = bool(events) or any(each.news for each in self._streams.values())
                    self._note(*self._news.get(block=not has_news))
            for request_id, stream in list(self._streams.items()):
                if stream.news:
                    events.append(self._told(request_id, stream.news.popleft()))
        except BaseException:
            self._server.on_failure()
            self._cut()
            raise
        return events

    def abort(self, request_id: str) -> None:
        stream = self._streams.pop(request_id, None)
        if stream is not None:
            stream.exchange.cut()
            self._undelivered.append(TokenEvent(request_id, None, FinishReason.ABORTED))

    def load_adapter(self, name: str, path: str) -> None:
        assert self._adapters is not None, "it has the capability"
        self._adapters.load(name, path)

    def unload_adapter(self, name: str) -> None:
        assert self._adapters is not None, "it has the capability"
        self._adapters.unload(name)

    def close(self) -> None:
        """Cuts the connections of all requests in progress, and takes its adapters from the server."""
        self._cut()
        for name in [*self._adapters.names] if self._adapters else ():
            self.unload_adapter(name)

    def _refusal(self, request: Request) -> str | None:
        """Returns why the request is not sent, or None; a bad request is sent if that is possible.

        The server never sees stop sequences, nor, with prompts as words, a token that has no word.
        """
        asked = request.sampling or SamplingParams()
        vocabulary = range(self._limits.vocab_size)
        is_text = self._options.prompts == "words"
        has_no_words = is_text and any(t not in vocabulary for t in request.prompt_token_ids)
        is_unseen = has_no_words or () in asked.stop_token_sequences
        is_judged_here = is_unseen or self._servers_limits.refusal(request) is None
        refusal = self._limits.refusal(request) if is_judged_here else None
        unknown = self._adapters.refusal(request.adapter) if self._adapters else None
        unsaid = self._options.unsaid(request, self._limits.vocab_size)
        return asked.beyond(self.sampling_fields) or refusal or unknown or unsaid

    def _refusals(self, requests: Sequence[Request]) -> list[str | None]:
        """Returns `_refusal` for a whole call; of two good requests with one id, the later is
        refused."""
        known = self._limits.refusals(requests)
        return [
            refusal if refusal == duplicate_id(request.request_id) else self._refusal(request)
            for request, refusal in zip(requests, known, strict=True)
        ]

    def _answer(self, request: Request) -> Answer:
        return Answer(request, self._options, self._limits.vocab_size)

    def _body(self, request: Request) -> dict[str, Any]:
        body = self._options.body(request, self._limits.vocab_size)
        return body | (self._adapters.fields(request.adapter) if self._adapters is not None else {})

    def _exchange(self, request: Request, body: dict[str, Any]) -> Exchange:
        exchange = self._server.exchange("POST", PATH, body)
        if self._slots is not None:
            exchange.at_begin = self._slots.begin
        if request.adapter is not None:
            exchange.also_refusal = NOT_FOUND
        return exchange

    def _jobs(self, answers: Sequence[Answer]) -> deque[Job]:
        """Returns the exchanges of a call; siblings share one."""
        options = self._options
        bodies = [self._body(each.request) for each in answers]
        jobs: deque[Job] = deque()
        for places in siblings_in(bodies, options.n, options.dialect.is_greedy_alone):
            group, body = [answers[place] for place in places], bodies[places[0]]
            if len(group) > 1:
                body |= {"n": len(group)}
                for number, each in enumerate(group):
                    each.number = number
            jobs.append((self._exchange(group[0].request, body), group))
        return jobs

    def _served(self, answers: Sequence[Answer]) -> list[list[TokenEvent]]:
        told: dict[Answer, list[TokenEvent]] = {each: [] for each in answers}
        jobs, news = self._jobs(answers), SimpleQueue[News]()
        exchanges = [exchange for exchange, _ in jobs]
        num_threads = min(self._options.concurrency, len(jobs))
        threads = [self._listener(jobs, news) for _ in range(num_threads)]
        num_open = len(exchanges)
        try:
            while num_open:
                answer, one = news.get()
                if isinstance(one, Exception):
                    raise one
                if one is None:
                    num_open -= 1
                else:
                    told[answer].append(one)
        except BaseException:  # also the time limit, or Ctrl-C
            self._server.on_failure()
            raise
        finally:
            jobs.clear()
            _end(exchanges, threads)
        return [*told.values()]

    def _listener(self, jobs: deque[Job], news: SimpleQueue[News]) -> threading.Thread:
        """Returns a thread that does these jobs, or those that no other takes, and tells their news."""

        def listen() -> None:
            with suppress(IndexError):  # there is no other job
                while True:
                    exchange, answers = jobs.popleft()
                    try:
                        for each in self._events(exchange, answers):
                            news.put(each)
                    except Exception as error:
                        jobs.clear()  # at once: whoever waits for news may be late
                        news.put((answers[0], error))
                    news.put((answers[0], None))

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        return thread

    def _events(
        self, exchange: Exchange, answers: Sequence[Answer]
    ) -> Iterator[tuple[Answer, TokenEvent]]:
        """Yields an event for each token of each answer; the last of an answer has the finish reason.

        Raises `EngineFailed` with the request, and `Cut` if the connection was cut on this side.
        """
        for each in answers:
            self._traffic.begin(each)
        is_over = False
        try:
            for piece in exchange.read_events() if self._options.stream else [exchange.read()]:
                for each in answers:
                    yield from ((each, event) for event in each.news(piece))
                if all(each.is_cut for each in answers):
                    break  # the rest is not needed
            for each in answers:
                yield from ((each, event) for event in each.end())
            is_over = all(each.is_whole for each in answers)
        except Refused as refusal:
            is_over = True
            for each in answers:
                yield each, TokenEvent.refused(each.request.request_id, str(refusal))
        except UnreadableAnswer as error:
            raise _named(exchange.failed(str(error)), answers) from None
        except EngineFailed as failure:
            raise _named(failure, answers) from None
        finally:
            for each in answers:
                self._traffic.end(each, is_over)
            exchange.close()

    def _note(self, answer: Answer, news: TokenEvent | Exception | None) -> None:
        """Keeps what has arrived, unless its request was aborted: the id may belong to another now."""
        stream = self._streams.get(answer.request.request_id)
        if news is not None and stream is not None and stream.answer is answer:
            stream.news.append(news)

    def _told(self, request_id: str, news: TokenEvent | Exception) -> TokenEvent:
        if isinstance(news, Exception):
            raise news
        if news.finish_reason is not None:
            del self._streams[request_id]
        return news

    def _cut(self) -> None:
        streams, self._streams, self._undelivered = [*self._streams.values()], {}, []
        _end([each.exchange for each in streams], [each.thread for each in streams])


def _end(exchanges: Iterable[Exchange], threads: Iterable[threading.Thread]) -> None:
    for exchange in exchanges:
        exchange.cut()
    for thread in threads:
        thread.join(JOIN_LIMIT_S)


def _named(failure: EngineFailed, answers: Sequence[Answer]) -> EngineFailed:
    names = ", ".join(repr(each.request.request_id) for each in answers)
    return EngineFailed(f"{failure} (request {names})")
