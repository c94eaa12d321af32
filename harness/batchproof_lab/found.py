"""What journals of one question hold together: each finished task once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from batchproof.errors import UsageError
from batchproof.records.campaign import CAMPAIGN, Question, Sitting
from batchproof.records.decode import DecodeError, decode, encode
from batchproof.records.provenance import Provenance, made_now

Outcome = TypeVar("Outcome")


@dataclass
class Found(Generic[Outcome]):
    """The fold over lines. Order and repetition of journals change nothing."""

    kind: type[Outcome]
    outcomes: dict[str, Outcome] = field(default_factory=dict)  # by the key of the task
    sittings: dict[str, Sitting] = field(default_factory=dict)  # by the same key: who did it
    kills: Counter[str] = field(default_factory=Counter)  # by the same key: workers killed

    def read(self, paths: Iterable[Path], question: Question) -> None:
        """Adds what the files hold. Raises `UsageError` for one of another question, or if two hold
        different outcomes of one task.
        """
        for path in sorted(set(paths)):
            head, lines = CAMPAIGN.read(path)
            if head not in (None, question):
                raise UsageError(
                    f"journal '{path}' is of another question or of other code than the others, "
                    f"and is not added to them"
                )
            sitting = None
            for line in lines:
                sitting = line.sitting or sitting
                self.kills[line.key] += bool(line.killed)
                if line.outcome is not None:
                    self._add(path, line.key, line.outcome, sitting)

    def made(self) -> Provenance:
        """Returns where the outcomes come from: the one sitting that made them, or all of them."""
        alone = {each.id: each for each in self.sittings.values()}
        if len(alone) == 1:
            return alone.popitem()[1].made
        return replace(made_now(), sittings=self.lines())

    def lines(self) -> tuple[str, ...]:
        """Returns a line for each sitting."""
        number = Counter(self.sittings.values())
        return tuple(
            f"shard {each.shard}, {count} tasks, from {each.made.date} on {each.made.machine}, commit "
            f"{each.made.commit}"
            for each, count in number.items()
        )

    def _add(self, path: Path, key: str, value: object, sitting: Sitting | None) -> None:
        try:
            if sitting is None:
                raise DecodeError("no sitting stands before it")
            outcome = decode(self.kind, value)
        except DecodeError as error:
            raise UsageError(f"journal '{path}' is damaged in task {key!r}: {error}") from None
        known = self.outcomes.setdefault(key, outcome)
        if _timeless(encode(known)) != _timeless(encode(outcome)):
            raise UsageError(f"journal '{path}' has another outcome of task {key!r} than the others")
        self.sittings.setdefault(key, sitting)


def _timeless(value: Any) -> Any:
    """Returns a JSON value without durations, which differ each time."""
    if isinstance(value, dict):
        return {key: _timeless(each) for key, each in value.items() if key != "seconds"}
    return [_timeless(each) for each in value] if isinstance(value, list) else value
