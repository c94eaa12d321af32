"""An engine that is a completions server, which gets many requests at once."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from batchproof.api import (
    Capability,
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
from batchproof_engines.adapters.openai.answer_parser import AnswerParser, Token, UnreadableAnswer
from batchproof_engines.adapters.openai.choices import Choice, SharedExchange
from batchproof_engines.adapters.openai.client import PATH, EngineFailed, Exchange, Refused, Server
from batchproof_engines.adapters.openai.options import Options
from batchproof_engines.adapters.openai.saved_slots import SavedSlots
from batchproof_engines.adapters.openai.traffic import Traffic
from batchproof_engines.adapters.siblings import siblings_in
from batchproof_engines.stopping import stops

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


class OpenAIEngine:
    """Sends each request on a thread of its own; the server forms the batches."""

    capabilities = frozenset({Capability.CLOSING})  # at least

    def __init__(
        self, server: Server, options: Options, model: PreTrainedModel, config: EngineConfig
    ) -> None:
        self.capabilities = self.capabilities | options.capabilities
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
        self._under_way: list[Exchange | Choice] = []
        self._traffic = Traffic()
        self._slots = SavedSlots(server) if options.restored else None
        self._adapters = None if options.adapters == "none" else KINDS[options.adapters](server)
        self.count_others: Callable[[], dict[str, int]] = dict  # what else is known of the server

    @property
    def counters(self) -> dict[str, int]:
        """Returns what happened so far, by name."""
        slots = {} if self._slots is None else self._slots.counts
        return {**self._traffic.counts, **slots, **self.count_others()}

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Returns one completion per request.

        Raises `EngineFailed` if a request gets no valid one. Requests in progress are then waited for;
        no others are sent.
        """
        refusals = self._refusals(requests)
        asked = self._exchanges({i: r for i, r in enumerate(requests) if refusals[i] is None})
        answers: dict[int, Completion] = {
            index: Completion.refused(requests[index].request_id, refusal)
            for index, refusal in enumerate(refusals)
            if refusal is not None
        }
        answers |= {index: each.result() for index, each in self._ask(requests, asked).items()}
        return [answers[index] for index in range(len(requests))]

    def load_adapter(self, name: str, path: str) -> None:
        assert self._adapters is not None, "it has the capability"
        self._adapters.load(name, path)

    def unload_adapter(self, name: str) -> None:
        assert self._adapters is not None, "it has the capability"
        self._adapters.unload(name)

    def close(self) -> None:
        """Cuts the connections of all requests in progress, and takes its adapters from the server."""
        self.cut()
        for name in [*self._adapters.names] if self._adapters else ():
            self.unload_adapter(name)

    def cut(self) -> None:
        """Cuts the connections of all requests in progress."""
        for exchange in self._under_way:
            exchange.cut()
        self._under_way = []

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
        live: set[str] = set()
        reasons: list[str | None] = []
        for request in requests:
            is_good = self._limits.refusal(request) is None
            is_duplicate = is_good and request.request_id in live
            reason = duplicate_id(request.request_id) if is_duplicate else self._refusal(request)
            reasons.append(reason)
            if is_good:
                live.add(request.request_id)
        return reasons

    def _exchanges(self, requests: dict[int, Request]) -> dict[int, Exchange | Choice]:
        """Returns the exchange of each request of a call, or its part of one that several share."""
        options, places = self._options, [*requests]
        bodies = [self._body(each) for each in requests.values()]
        asked: dict[int, Exchange | Choice] = {}
        for group in siblings_in(bodies, options.n, options.dialect.is_greedy_alone):
            first, many = group[0], len(group) > 1
            body = bodies[first] | ({"n": len(group)} if many else {})
            exchange = self._exchange(requests[places[first]], body)
            shared = SharedExchange(exchange, options.stream)
            for number, each in enumerate(group):
                asked[places[each]] = Choice(shared, number) if many else exchange
        return dict(sorted(asked.items()))

    def _body(self, request: Request) -> dict[str, Any]:
        body = self._options.body(request, self._limits.vocab_size)
        return body | (self._adapters.fields(request.adapter) if self._adapters is not None else {})

    def _exchange(self, request: Request, body: dict[str, Any]) -> Exchange:
        begin = self._slots.begin if self._slots else None
        exchange = self._server.exchange("POST", PATH, body, begin)
        if request.adapter is not None:
            exchange.also_refusal = NOT_FOUND
        return exchange

    def _ask(
        self, requests: Sequence[Request], asked: dict[int, Exchange | Choice]
    ) -> dict[int, Future[Completion]]:
        """Returns the outcome of each request by its index; those after a failure may be missing."""
        self._under_way = [*asked.values()]
        pool = ThreadPoolExecutor(self._options.concurrency)
        try:
            futures = {
                index: pool.submit(self._answer, requests[index], exchange)
                for index, exchange in asked.items()
            }
            wait(futures.values(), return_when=FIRST_EXCEPTION)
            pool.shutdown(cancel_futures=True)  # and waits for the requests in progress
        except BaseException:  # the time limit, or Ctrl-C
            self._server.on_failure()
            raise
        finally:
            self.cut()
            pool.shutdown(wait=False, cancel_futures=True)
        return {index: future for index, future in futures.items() if not future.cancelled()}

    def _answer(self, request: Request, exchange: Exchange | Choice) -> Completion:
        try:
            events = [*self._events(request, exchange)]
        except EngineFailed as failure:
            raise EngineFailed(f"{failure} (request {request.request_id!r})") from None
        reason, error = events[-1].finish_reason, events[-1].error
        assert reason is not None, "the last event has it"
        tokens = tuple(each.token_id for each in events if each.token_id is not None)
        logprobs = tuple(each.logprobs for each in events if each.logprobs is not None)
        return Completion(request.request_id, tokens, reason, error, logprobs=logprobs or None)

    def _events(
        self, request: Request, exchange: Exchange | Choice, *, at_once: bool = False
    ) -> Iterator[TokenEvent]:
        """Yields an event for each token; the last one has the finish reason.

        The last token is in the last event, unless it was yielded before: a token is held back until
        the next one arrives or, `at_once`, only if it may be the last. Raises `EngineFailed`, and `Cut`
        if the connection was cut on this side.
        """
        request_id, asked = request.request_id, request.sampling or SamplingParams()
        options = self._options
        parser = AnswerParser(self._limits.vocab_size, options.tokens, asked.logprobs)
        held: TokenEvent | None = None
        tokens: list[int] = []
        is_end = is_ended_here = is_whole = False
        self._traffic.begin(exchange)
        try:
            for token, logprobs in self._tokens(request, exchange, parser):
                if held is not None:
                    yield held
                held = TokenEvent(request_id, token, logprobs=logprobs)
                tokens.append(token)
                is_end = token in request.eos_token_ids or stops(request, tokens)
                is_ended_here = is_end and options.is_cut_here(request)
                if is_ended_here:
                    break  # the rest is not needed
                if at_once and not is_end and len(tokens) < request.max_new_tokens:
                    yield held
                    held = None
            is_whole = not is_ended_here or parser.finish_reason is not None
        except Refused as refusal:
            is_whole = True
            yield TokenEvent.refused(request_id, str(refusal))
            return
        except UnreadableAnswer as error:
            raise exchange.failed(str(error)) from None
        finally:
            is_adapted = request.adapter is not None and parser.finish_reason is not None
            self._traffic.end(
                exchange, is_whole, parser.has_cached, is_adapted, isinstance(exchange, Choice)
            )
            exchange.close()
        # A server may call both ends by one name where they fall together.
        is_both = is_end and len(tokens) == request.max_new_tokens and options.eos_at_cap == "length"
        is_stopped = is_ended_here or (is_both and parser.finish_reason is FinishReason.LENGTH)
        reason = FinishReason.STOP if is_stopped else parser.finish_reason
        assert reason is not None, "the parser rejects an answer without a reason"
        last = TokenEvent(request_id, None) if held is None else held
        yield last._replace(finish_reason=reason)

    def _tokens(
        self, request: Request, exchange: Exchange | Choice, parser: AnswerParser
    ) -> Iterator[Token]:
        answers = exchange.read_events() if self._options.stream else iter([exchange.read()])
        for answer in answers:
            yield from parser.feed(answer)
        for token in parser.end(request):
            yield token, None


JOIN_LIMIT_S = 5.0  # for a thread whose connection was cut


class _Stream(NamedTuple):
    """A live request, and what has arrived and was not told."""

    exchange: Exchange
    thread: threading.Thread
    news: deque[TokenEvent | Exception]


class SteppingOpenAIEngine(OpenAIEngine):
    """Streams all added requests at once; `concurrency` applies to `generate` only.

    A step tells one event of each request. The server does not wait for it: what arrives meanwhile is
    told by later steps, so that an abort at a step is one, however late this process is.
    """

    capabilities = OpenAIEngine.capabilities | {Capability.STEPPING}

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._streams: dict[str, _Stream] = {}
        self._news: SimpleQueue[tuple[str, Exchange, TokenEvent | Exception]] = SimpleQueue()
        self._undelivered: list[TokenEvent] = []  # of requests that were refused or aborted

    @property
    def has_unfinished(self) -> bool:
        return bool(self._streams or self._undelivered)

    def add(self, request: Request) -> None:
        """Sends the request, or schedules its refusal. Raises `ValueError` if its id is live."""
        if request.request_id in self._streams:
            raise ValueError(duplicate_id(request.request_id))
        refusal = self._refusal(request)
        if refusal is not None:
            self._undelivered.append(TokenEvent.refused(request.request_id, refusal))
            return
        exchange = self._exchange(request, self._body(request))
        thread = threading.Thread(target=self._listen, args=(request, exchange), daemon=True)
        self._streams[request.request_id] = _Stream(exchange, thread, deque())
        thread.start()

    def step(self) -> list[TokenEvent]:
        """Returns the next event of each request of which one has arrived; waits if there is none.

        Raises `EngineFailed` after cutting all connections.
        """
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
            self.cut()
            raise
        return events

    def abort(self, request_id: str) -> None:
        """Cuts the request's connection; an unknown id has no effect."""
        stream = self._streams.pop(request_id, None)
        if stream is not None:
            stream.exchange.cut()
            self._undelivered.append(TokenEvent(request_id, None, FinishReason.ABORTED))

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """As `OpenAIEngine.generate`; raises `RuntimeError` while added requests are unfinished."""
        if self.has_unfinished:
            raise RuntimeError("generate was called while requests given by add are unfinished")
        return super().generate(requests)

    def cut(self) -> None:
        """Cuts all connections and waits for their threads."""
        super().cut()
        streams, self._streams, self._undelivered = self._streams, {}, []
        for stream in streams.values():
            stream.exchange.cut()
        for stream in streams.values():
            stream.thread.join(JOIN_LIMIT_S)

    def _listen(self, request: Request, exchange: Exchange) -> None:
        """Queues the events of a request; runs on a thread of its own."""
        try:
            for event in self._events(request, exchange, at_once=True):
                self._news.put((request.request_id, exchange, event))
        except Exception as error:
            self._news.put((request.request_id, exchange, error))

    def _note(self, request_id: str, exchange: Exchange, news: TokenEvent | Exception) -> None:
        """Keeps what has arrived, unless its request was aborted: the id may belong to another now."""
        stream = self._streams.get(request_id)
        if stream is not None and stream.exchange is exchange:
            stream.news.append(news)

    def _told(self, request_id: str, news: TokenEvent | Exception) -> TokenEvent:
        if isinstance(news, Exception):
            raise news
        if news.finish_reason is not None:
            del self._streams[request_id]
        return news


def engine_at(
    server: Server, options: Options, model: PreTrainedModel, config: EngineConfig
) -> OpenAIEngine:
    """Returns an engine for a server that is known to answer."""
    kind = SteppingOpenAIEngine if options.stream else OpenAIEngine
    return kind(server, options, model, config)
