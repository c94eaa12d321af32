"""How answers travel: late, lazily, backwards, through a thread, under other names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from transformers import PreTrainedModel

from batchproof.api import (
    Capability,
    Completion,
    EngineConfig,
    FinishReason,
    Request,
    StepRecord,
    TokenEvent,
    duplicate_id,
)
from batchproof_engines.odd.oddity import odd
from batchproof_engines.ragged.engine import RaggedEngine
from batchproof_engines.static import StaticEngine

BURST = 3  # steps whose events are delivered together


@odd
class SaysNothing(RaggedEngine):
    """It declares no capabilities: what it can do has to be seen."""

    capabilities = None  # type: ignore[assignment]


@odd
class EventsInReverse(RaggedEngine):
    """The events of one step come sorted by id, the last one first."""

    def step(self) -> list[TokenEvent]:
        # Stable: two events of one id, such as its abort and its next life, keep their order.
        return sorted(super().step(), key=lambda event: event.request_id, reverse=True)


class _Holding(RaggedEngine):
    """Keeps events back. To the user a request whose end is among them is live."""

    def __init__(self, model: PreTrainedModel, config: EngineConfig) -> None:
        super().__init__(model, config)
        self._held: list[TokenEvent] = []

    @property
    def has_unfinished(self) -> bool:
        return super().has_unfinished or bool(self._held)

    def _held_tokens(self, request_id: str) -> list[TokenEvent]:
        return [e for e in self._held if e.request_id == request_id and e.token_id is not None]

    def add(self, request: Request) -> None:
        if self._held_tokens(request.request_id):
            raise ValueError(duplicate_id(request.request_id))
        super().add(request)

    def abort(self, request_id: str) -> None:
        withdrawn = self._held_tokens(request_id)
        self._held = [event for event in self._held if event not in withdrawn]
        if withdrawn and not self._scheduler.is_live(request_id):
            self._undelivered.append(TokenEvent(request_id, None, FinishReason.ABORTED))
        super().abort(request_id)


@odd
class EventsOneStepLate(_Holding):
    """A step returns the events of the step before, as an engine does that reads results late."""

    def step(self) -> list[TokenEvent]:
        events, self._held = self._held, super().step()
        return events


@odd
class EventsInBursts(_Holding):
    """Events are delivered every third step, so several tokens of one request come at once."""

    _num_steps = 0

    def step(self) -> list[TokenEvent]:
        self._held += super().step()
        self._num_steps += 1
        if self._num_steps % BURST and super().has_unfinished:
            return []
        events, self._held = self._held, []
        return events


@odd
class WorksInAThread(RaggedEngine):
    """All work is done in a thread of its own, which `close` ends."""

    capabilities = RaggedEngine.capabilities | {Capability.CLOSING}

    def __init__(self, model: PreTrainedModel, config: EngineConfig) -> None:
        super().__init__(model, config)
        self._thread = ThreadPoolExecutor(max_workers=1)

    def generate(self, requests: Seq[Request]) -> list[Completion]:
        return self._thread.submit(super().generate, requests).result()

    def step(self) -> list[TokenEvent]:
        return self._thread.submit(super().step).result()

    def close(self) -> None:
        self._thread.shutdown()


class _Lazy(list[Completion]):
    """A list that is made when somebody looks into it."""

    def __init__(self, make: Callable[[], list[Completion]]) -> None:
        super().__init__()
        self._make: Callable[[], list[Completion]] | None = make

    def __iter__(self) -> Iterator[Completion]:
        self._fill()
        return super().__iter__()

    def __len__(self) -> int:
        self._fill()
        return super().__len__()

    def _fill(self) -> None:
        if self._make is not None:
            made, self._make = self._make(), None
            self.extend(made)


@odd
class AnswersLazily(StaticEngine):
    """Nothing is computed until somebody looks into the list that `generate` returned."""

    def generate(self, requests: Seq[Request]) -> list[Completion]:
        asked, answer = tuple(requests), super().generate
        return _Lazy(lambda: answer(asked))


@odd
class RenamesRequests(RaggedEngine):
    """Inside, ids are numbers in the order they were first heard of; outside they are the user's."""

    def __init__(self, model: PreTrainedModel, config: EngineConfig) -> None:
        super().__init__(model, config)
        self._numbers: dict[str, str] = {}  # user's id -> ours

    def _number(self, request_id: str) -> str:
        return self._numbers.setdefault(request_id, str(len(self._numbers)))

    def _names(self, numbers: Seq[str]) -> tuple[str, ...]:
        names = tuple(self._numbers)
        return tuple(names[int(number)] for number in numbers)

    def _numbered(self, request: Request) -> Request:
        return replace(request, request_id=self._number(request.request_id))

    def add(self, request: Request) -> None:
        if self._scheduler.is_live(self._number(request.request_id)):
            raise ValueError(duplicate_id(request.request_id))
        super().add(self._numbered(request))

    def abort(self, request_id: str) -> None:
        super().abort(self._number(request_id))

    def step(self) -> list[TokenEvent]:
        events = super().step()
        names = self._names([event.request_id for event in events])
        return [e._replace(request_id=name) for e, name in zip(events, names, strict=True)]

    def generate(self, requests: Seq[Request]) -> list[Completion]:
        answers = super().generate([self._numbered(request) for request in requests])
        return [self._told(*pair) for pair in zip(requests, answers, strict=True)]

    def _told(self, request: Request, answer: Completion) -> Completion:
        """The answer in the user's words; of the errors only that of a live id names an id."""
        name, is_twin = request.request_id, answer.error == duplicate_id(answer.request_id)
        return replace(answer, request_id=name, error=duplicate_id(name) if is_twin else answer.error)

    @property
    def trace(self) -> Seq[StepRecord]:
        return [self._renamed(record) for record in super().trace]

    def _renamed(self, record: StepRecord) -> StepRecord:
        ids = self._names([row.request_id for row in record.rows])
        rows = tuple(replace(r, request_id=i) for r, i in zip(record.rows, ids, strict=True))
        return replace(
            record,
            rows=rows,
            waiting=self._names(record.waiting),
            admitted=self._names(record.admitted),
            finished=self._names(record.finished),
            preempted=self._names(record.preempted),
        )
