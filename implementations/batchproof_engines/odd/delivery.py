"""Unusual delivery of answers: late, lazily, in reverse, through a thread, under internal names."""

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from transformers import PreTrainedModel

from batchproof.api import (
    Capability,
    Completion,
    EngineConfig,
    Request,
    RowRecord,
    StepRecord,
    TokenEvent,
    duplicate_id,
)
from batchproof_engines.odd.oddity import odd
from batchproof_engines.ragged.delayed import HoldingEngine
from batchproof_engines.ragged.engine import RaggedEngine
from batchproof_engines.static import StaticEngine

BURST = 3  # steps whose events are delivered together


@odd
class SaysNothing(RaggedEngine):
    """It declares no capabilities: the suite has to find out what it can do."""

    capabilities = None  # type: ignore[assignment]


@odd
class EventsInReverse(RaggedEngine):
    """The events of one step are sorted by id in descending order."""

    def step(self) -> list[TokenEvent]:
        # Stable: two events of one id, such as an abort and a new request, keep their order.
        return sorted(super().step(), key=lambda event: event.request_id, reverse=True)


@odd
class EventsOneStepLate(HoldingEngine):
    """A step returns the events of the step before, as an engine does that reads results late."""


@odd
class EventsInBursts(HoldingEngine):
    """Events are delivered every third step, so several tokens of one request come at once."""

    _num_steps = 0

    def _due(self, new: list[TokenEvent]) -> list[TokenEvent]:
        self._held += tuple(new)
        self._num_steps += 1
        if self._num_steps % BURST and self._is_busy:
            return []
        events, self._held = self._held, ()
        return list(events)


@odd
class WorksInAThread(RaggedEngine):
    """All work is done in a separate thread, which `close` ends."""

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
    """A list whose elements are computed when it is first read."""

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
    """Nothing is computed until the list that `generate` returned is read."""

    def generate(self, requests: Seq[Request]) -> list[Completion]:
        asked, answer = tuple(requests), super().generate
        return _Lazy(lambda: answer(asked))


@odd
class RenamesRequests(RaggedEngine):
    """Internally, each id is spelt backwards; externally it is the user's."""

    def add(self, request: Request) -> None:
        turned = _turned(request)
        if self._scheduler.is_live(turned.request_id):
            raise ValueError(duplicate_id(request.request_id))
        super().add(turned)

    def abort(self, request_id: str) -> None:
        super().abort(request_id[::-1])

    def step(self) -> list[TokenEvent]:
        return [event._replace(request_id=event.request_id[::-1]) for event in super().step()]

    def generate(self, requests: Seq[Request]) -> list[Completion]:
        answers = super().generate([_turned(request) for request in requests])
        return [self._renamed_answer(_turned(answer)) for answer in answers]

    def _renamed_answer(self, answer: Completion) -> Completion:
        """Returns the answer with the user's id in its error; only that of a duplicate names one."""
        name = answer.request_id
        is_duplicate = answer.error == duplicate_id(name[::-1])
        return replace(answer, error=duplicate_id(name)) if is_duplicate else answer

    @property
    def trace(self) -> Seq[StepRecord]:
        return [
            replace(
                record,
                rows=tuple(map(_turned, record.rows)),
                waiting=_all_turned(record.waiting),
                admitted=_all_turned(record.admitted),
                finished=_all_turned(record.finished),
                preempted=_all_turned(record.preempted),
            )
            for record in super().trace
        ]


@odd
class ListsTheLatestFirst(RaggedEngine):
    """In its trace rows and ids stand in reverse order, the last to arrive in front."""

    @property
    def trace(self) -> Seq[StepRecord]:
        lists = ("rows", "waiting", "admitted", "finished", "preempted")
        return [
            replace(each, **{name: getattr(each, name)[::-1] for name in lists})
            for each in super().trace
        ]


Named = TypeVar("Named", Request, Completion, RowRecord)


def _turned(named: Named) -> Named:
    return replace(named, request_id=named.request_id[::-1])


def _all_turned(request_ids: Seq[str]) -> tuple[str, ...]:
    return tuple(each[::-1] for each in request_ids)
