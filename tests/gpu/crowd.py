"""An engine with sequences that decode together, driven through its public methods, `add` and `step`.
The content of a step is read from the trace."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import Any
from unittest.mock import patch

import torch
from transformers import PreTrainedModel

from batchproof.api import EngineConfig, Request
from batchproof.run.devices import synchronise
from batchproof.run.registry import resolve_engine


@dataclass
class Crowd:
    engine: Any  # it has both, STEPPING and TRACING
    device: torch.device
    vocab_size: int
    cap: int  # tokens that each may still produce
    num_added: int = 0
    live: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, engine: str, model: PreTrainedModel, num_seqs: int, prompt_len: int, cap: int) -> Crowd:
        """Builds the engine and runs it until all sequences decode; newcomers may have prompts of
        that length."""
        longest = prompt_len + cap
        config = EngineConfig(
            max_num_seqs=num_seqs,
            max_num_batched_tokens=max(8192, num_seqs),
            num_blocks=num_seqs * (-(-longest // EngineConfig().block_size) + 1),
            max_model_len=longest,
        )
        vocab_size = model.config.get_text_config().vocab_size
        crowd = cls(resolve_engine(engine).factory(model, config), model.device, vocab_size, cap)
        for _ in range(num_seqs):
            crowd.add(prompt_len)
        crowd.settle()
        return crowd

    def add(self, prompt_len: int) -> None:
        number, self.num_added = self.num_added, self.num_added + 1
        prompt = tuple((7 * number + 3 * place) % self.vocab_size for place in range(prompt_len))
        self.engine.add(Request(f"r{number}", prompt, self.cap))
        self.live.append(f"r{number}")

    def settle(self) -> None:
        """Steps until all sequences decode, and a little longer, so that one-time work is done."""
        self.engine.step()
        while any(row.query_len > 1 for row in self.engine.trace[-1].rows):
            self.engine.step()
        for _ in range(4):
            self.engine.step()

    def step_s(self, num_steps: int) -> float:
        """Returns the mean duration of so many steps in seconds."""
        synchronise(self.device)
        began = perf_counter()
        for _ in range(num_steps):
            self.engine.step()
        synchronise(self.device)
        return (perf_counter() - began) / num_steps

    def host_s(self, num_steps: int) -> float:
        """Returns the mean time per step in seconds in which the host does not wait for the device."""
        waits_s = 0.0
        wait = torch.cuda.Event.synchronize

        def wait_and_count(event: torch.cuda.Event) -> None:
            nonlocal waits_s
            began = perf_counter()
            wait(event)
            waits_s += perf_counter() - began

        with patch.object(torch.cuda.Event, "synchronize", wait_and_count):
            synchronise(self.device)
            began = perf_counter()
            for _ in range(num_steps):
                self.engine.step()
            seconds = perf_counter() - began  # the remaining work of the device is not the host's
        return (seconds - waits_s) / num_steps

    def newcomer_s(self, prompt_len: int) -> tuple[float, float]:
        """Returns the seconds of a step with a prompt, and the host's; the oldest leaves first."""
        self.engine.abort(self.live.pop(0))
        self.add(prompt_len)
        synchronise(self.device)
        began = perf_counter()
        self.engine.step()
        host_s = perf_counter() - began
        synchronise(self.device)
        seconds = perf_counter() - began
        assert max(row.query_len for row in self.engine.trace[-1].rows) == prompt_len, "not fed whole"
        self.settle()
        return seconds, host_s
