"""Follows a scheduler's trace: what each sequence has cached and produced after each step."""

from __future__ import annotations

from dataclasses import dataclass, field

from batchproof.api import StepRecord
from batchproof.checks.broken import broken
from batchproof.findings.finding import Rule
from batchproof.workload.workloads import Workload


@dataclass
class TraceReplay:
    """The state that a trace implies: call `begin` and `end` for each record, in order."""

    workload: Workload
    num_cached: dict[str, int] = field(default_factory=dict)
    num_outputs: dict[str, int] = field(default_factory=dict)
    running: list[str] = field(default_factory=list)
    ever_admitted: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.requests = {request.request_id: request for request in self.workload.requests}

    def num_known(self, request_id: str) -> int:
        """Returns the number of tokens that exist: the prompt and the outputs so far."""
        return len(self.requests[request_id].prompt_token_ids) + self.num_outputs.get(request_id, 0)

    def is_decoding(self, request_id: str) -> bool:
        """Returns whether all tokens but the last are cached."""
        return self.num_cached.get(request_id, 0) == self.num_known(request_id) - 1

    def begin(self, step: int, record: StepRecord) -> None:
        """Applies preemptions and admissions. Raises `BrokenPromise` for an id that no request has."""
        fed = [row.request_id for row in record.rows]
        names = (*fed, *record.waiting, *record.admitted, *record.finished, *record.preempted)
        for name in names:
            if name not in self.requests:
                raise broken(Rule.NAMES, step=step, name=name)
        for request_id in record.preempted:
            self.num_cached[request_id] = 0
            self.running = [each for each in self.running if each != request_id]
        for request_id in record.admitted:
            self.running.append(request_id)
            if request_id not in self.ever_admitted:
                self.ever_admitted.append(request_id)

    def end(self, record: StepRecord) -> None:
        """Applies what the rows fed and sampled, and removes finished requests."""
        for row in record.rows:
            self.num_cached[row.request_id] = row.cached_len
            self.num_outputs[row.request_id] = self.num_outputs.get(row.request_id, 0) + row.num_sampled
        self.running = [each for each in self.running if each not in record.finished]
