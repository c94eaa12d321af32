"""An engine that is a completions server, which gets many requests at once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from batchproof.api import Capability, Completion, Request
from batchproof_engines.adapters.openai.client import PATH, EngineFailed, Exchange, Server
from batchproof_engines.adapters.openai.dialect import Dialect
from batchproof_engines.adapters.openai.events import completion_of, token_events
from batchproof_engines.adapters.openai.request_filter import RequestFilter

NUM_NAMED = 8  # request ids in an error
CUT_HERE = (
    "EOS ids are applied by the adapter, which cuts an answer at the first of them and calls it stop: "
    "how the server stops is not tested."
)
PASSED_ON = (
    "EOS ids are applied by the server. One that it counts but leaves out of its answer is put in, if "
    "it names it or only one was asked for. Its finish reason is passed on."
)
NO_IDS = (
    "The interface has no request ids: the adapter refuses the later of two requests with one id, and "
    "a request that only max_model_len forbids."
)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request of a call with its index there."""

    index: int
    request: Request
    exchange: Exchange


class OpenAIEngine:
    """Sends each request on a thread of its own; the server forms the batches."""

    capabilities = frozenset({Capability.CLOSING})  # at least
    release: str | None = None  # name and version, if the factory knows them

    def __init__(
        self, server: Server, dialect: Dialect, request_filter: RequestFilter, concurrency: int
    ) -> None:
        self.capabilities = self.capabilities | dialect.capabilities
        self.sampling_fields = dialect.fields
        self.notes: tuple[str, ...] = (CUT_HERE if dialect.eos == "client" else PASSED_ON, NO_IDS)
        self._server = server
        self._dialect = dialect
        self._filter = request_filter
        self._concurrency = concurrency
        self._under_way: list[Exchange] = []

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Returns one completion per request.

        Raises `EngineFailed`, with the other answers, if a request gets no valid one. Requests in
        progress are then waited for; no others are sent.
        """
        outcomes: dict[int, Completion | Exception] = {}
        asked: list[_Asked] = []
        refusals = self._filter.refusals(requests)
        for index, (request, refusal) in enumerate(zip(requests, refusals, strict=True)):
            if refusal is not None:
                outcomes[index] = Completion.refused(request.request_id, refusal)
            else:
                asked.append(_Asked(index, request, self._exchange(request)))
        outcomes |= self._ask(asked)
        answers = {i: each for i, each in outcomes.items() if isinstance(each, Completion)}
        errors = {i: each for i, each in outcomes.items() if isinstance(each, Exception)}
        if errors:
            raise _failure(requests, answers, errors)
        return [answers[index] for index in range(len(requests))]

    def close(self) -> None:
        """Cuts the connections of all requests in progress."""
        for exchange in self._under_way:
            exchange.cut()
        self._under_way = []

    def _exchange(self, request: Request) -> Exchange:
        return self._server.exchange("POST", PATH, self._dialect.body(request))

    def _ask(self, asked: Sequence[_Asked]) -> dict[int, Completion | Exception]:
        """Returns the outcome of each request by its index; those after a failure may be missing."""
        waiting: SimpleQueue[_Asked] = SimpleQueue()
        ended: SimpleQueue[None] = SimpleQueue()  # a thread each
        outcomes: dict[int, Completion | Exception] = {}
        is_over = threading.Event()
        for each in asked:
            waiting.put(each)
        threads = range(min(self._concurrency, len(asked)))
        self._under_way = [each.exchange for each in asked]
        for _ in threads:
            arguments = (waiting, outcomes, ended, is_over)
            threading.Thread(target=self._serve, args=arguments, daemon=True).start()
        try:
            for _ in threads:
                ended.get()
        except BaseException:  # the time limit, or Ctrl-C
            self._server.on_failure()
            raise
        finally:
            is_over.set()
            self.close()
        return outcomes

    def _serve(
        self,
        waiting: SimpleQueue[_Asked],
        outcomes: dict[int, Completion | Exception],
        ended: SimpleQueue[None],
        is_over: threading.Event,
    ) -> None:
        """Sends one request after another, on a thread, until none is left or one has failed."""
        while not is_over.is_set():
            try:
                each = waiting.get_nowait()
            except Empty:
                break
            try:
                events = token_events(each.request, each.exchange, self._dialect)
                outcomes[each.index] = completion_of(each.request, events)
            except Exception as error:
                is_over.set()
                outcomes[each.index] = error
        ended.put(None)


def _failure(
    requests: Sequence[Request], answers: dict[int, Completion], errors: dict[int, Exception]
) -> Exception:
    """Returns one error for the call: the first failure, its request, and how many others were
    answered."""
    index, error = next(iter(errors.items()))
    if not isinstance(error, EngineFailed):
        return error  # a bug of the adapter
    if len(requests) == 1:
        return EngineFailed(f"{error} (request {requests[0].request_id!r})")
    failed = [requests[i].request_id for i in errors]
    named = ", ".join(map(repr, failed[:NUM_NAMED])) + (", ..." if len(failed) > NUM_NAMED else "")
    num_unasked = len(requests) - len(answers) - len(errors)
    failure = EngineFailed(
        f"{error} (request {requests[index].request_id!r}). Of {len(requests)} requests {len(answers)} "
        f"were answered, {len(failed)} failed ({named}), and {num_unasked} were never sent"
    )
    failure.completions = tuple(answers[i] for i in sorted(answers))
    return failure
