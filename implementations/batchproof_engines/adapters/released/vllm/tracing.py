"""What vLLM's scheduler did, as records of the protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm.v1.kv_cache_interface import MambaSpec

Record = dict[str, Any]  # the fields of `StepRecord`


class Tracer:
    """Listens to the scheduler of one engine: to what it plans for a step, and to what becomes of it.

    Both are methods of vLLM's own interface of schedulers (`SchedulerInterface`), which the engine
    calls in turn; each does what it did, and its result is read. `names` are the ids of the suite by
    those of the engine.
    """

    def __init__(self, scheduler: Any, names: Mapping[str, str]) -> None:
        self._scheduler, self._names = scheduler, names
        self._records: list[Record] = []
        self._plan, self._update = scheduler.schedule, scheduler.update_from_output
        scheduler.schedule = self._planned
        scheduler.update_from_output = self._updated

    def take(self) -> list[Record]:
        """Returns the records since the last call."""
        taken, self._records = self._records, []
        return taken

    def _planned(self, *args: Any, **kwargs: Any) -> Any:
        plan = self._plan(*args, **kwargs)
        if plan.total_num_scheduled_tokens:  # else it only tells the worker who has ended
            self._records.append(self._record_of(plan))
        return plan

    def _updated(self, plan: Any, output: Any) -> Any:
        outputs = self._update(plan, output)
        if plan.total_num_scheduled_tokens:
            record = self._records[-1]
            told = {each.request_id: each for one in outputs.values() for each in one.outputs}
            for row in record["rows"]:
                one = told.get(row.pop("number"))
                if one is not None:
                    row["num_accepted"] = max(0, len(one.new_token_ids) - 1)
                    if one.finish_reason is not None:
                        record["finished"].append(row["request_id"])
            self._count_blocks(record)
        return outputs

    def note_end(self, name: str, num_tokens: int) -> None:
        """Notes the end of a request by the latest step, with the tokens that it got of it. A stop text
        is found behind the scheduler, which still counts the right drafts behind it."""
        record = self._records[-1]
        (row,) = (each for each in record["rows"] if each["request_id"] == name)
        row["num_accepted"] = num_tokens - 1
        if name not in record["finished"]:
            record["finished"].append(name)
            self._count_blocks(record)

    def _count_blocks(self, record: Record) -> None:
        manager = self._scheduler.kv_cache_manager
        groups = manager.coordinator.single_type_managers
        # Beside states blocks have the size of a state, whatever was asked: they are not counted.
        if not any(isinstance(each.kv_cache_spec, MambaSpec) for each in groups):
            record["num_free_blocks"] = manager.block_pool.get_num_free_blocks()
            record["num_total_blocks"] = manager.block_pool.num_gpu_blocks - 1  # one is for no block
            record["num_cache_groups"] = len(groups)

    def _record_of(self, plan: Any) -> Record:
        known = plan.scheduled_cached_reqs
        starts = {each.req_id: each.num_computed_tokens for each in plan.scheduled_new_reqs}
        admitted = [*starts, *(each for each in known.req_ids if each in known.resumed_req_ids)]
        starts |= zip(known.req_ids, known.num_computed_tokens, strict=True)
        return {
            "rows": [
                self._row_of(number, starts[number], num_fed, plan)
                for number, num_fed in plan.num_scheduled_tokens.items()
            ],
            "waiting": [self._names[each.request_id] for each in self._scheduler.waiting],
            "admitted": [self._names[each] for each in admitted],
            "finished": [],
            "preempted": sorted(self._names[each] for each in plan.preempted_req_ids or ()),
        }

    def _row_of(self, number: str, start: int, num_fed: int, plan: Any) -> Record:
        num_drafted = len(plan.scheduled_spec_decode_tokens.get(number, ()))
        num_known = self._scheduler.requests[number].num_tokens
        return {
            "number": number,
            "request_id": self._names[number],
            "context_len": start,
            "query_len": num_fed,
            "is_sampled": start + num_fed - num_drafted == num_known,
            "num_drafted": num_drafted,
            "num_accepted": 0,
        }
