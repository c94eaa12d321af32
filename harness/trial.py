"""One engine on one model, as a test sees it.

The `Laboratory` lives for the session and owns what is expensive: models, oracles, what an engine can
do. A `Trial` is what one test gets: it builds engines, runs workloads, judges answers, and sees to it
that a failure names engine, model and workload.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from harness.adequacy import Adequacy, measure_adequacy
from harness.api import Capability, Engine, EngineConfig, Request
from harness.capabilities import capabilities_of
from harness.compare import check_completions
from harness.errors import EngineHang, UnsupportedModelError
from harness.models.catalogue import ModelUnderTest, load_model
from harness.oracle import Oracle
from harness.paste import workload_as_yaml
from harness.promises import Promise
from harness.registry import EngineSpec, reference_factory
from harness.timelimit import time_limit
from harness.verdict import ConformanceFailure, EngineRaised, Ledger
from harness.workloads import Outcome, Workload, run

BUILD_TIME_LIMIT_S = 120.0


@dataclass
class Laboratory:
    """Models, oracles and engine facts of one session, each made once and when first needed."""

    device: torch.device
    dtype: torch.dtype
    time_limit_s: float
    _subjects: dict[str, ModelUnderTest] = field(default_factory=dict)
    _oracles: dict[str, Oracle] = field(default_factory=dict)
    _capabilities: dict[tuple[str, str], frozenset[Capability] | UnsupportedModelError] = field(
        default_factory=dict
    )
    _adequacy: dict[str, Adequacy] = field(default_factory=dict)
    _is_bitwise: dict[tuple[str, str], bool] = field(default_factory=dict)

    def subject(self, model_name: str) -> ModelUnderTest:
        """Raises `UsageError` if there is no such model."""
        if model_name not in self._subjects:
            self._subjects[model_name] = load_model(model_name, self.device, self.dtype)
        return self._subjects[model_name]

    def oracle(self, model_name: str) -> Oracle:
        if model_name not in self._oracles:
            self._oracles[model_name] = Oracle(self.subject(model_name), reference_factory())
        return self._oracles[model_name]

    def adequacy(self, subject: ModelUnderTest) -> Adequacy | None:
        """Of a model the user brought; the embedded ones are known to show faults."""
        if subject.is_embedded:
            return None
        if subject.name not in self._adequacy:
            self._adequacy[subject.name] = measure_adequacy(subject)
        return self._adequacy[subject.name]

    def capabilities(self, spec: EngineSpec, subject: ModelUnderTest) -> frozenset[Capability]:
        """Raises `UnsupportedModelError` if the engine refuses the model."""
        key = (spec.name, subject.name)
        if key not in self._capabilities:
            try:
                with time_limit(BUILD_TIME_LIMIT_S, "building the engine"):
                    found = capabilities_of(
                        spec.name, lambda config: spec.factory(subject.model, config)
                    )
            except UnsupportedModelError as error:
                self._capabilities[key] = error
            else:
                self._capabilities[key] = found
        known = self._capabilities[key]
        if isinstance(known, UnsupportedModelError):
            raise known
        return known

    def is_bitwise(self, trial: Trial) -> bool:
        """Rule O0: do two fresh engines give the same bits for the same workload? If not, the
        bit-level relations hold "within the bound" only, and the summary says so."""
        key = (trial.spec.name, trial.subject.name)
        if key not in self._is_bitwise:
            prompts = [tuple(range(1, length)) for length in (9, 3, 14, 6, 2)]
            requests = tuple(Request(f"o0-{i}", p, 4) for i, p in enumerate(prompts))
            workload = Workload(requests, EngineConfig(max_num_seqs=3, return_logits=True))
            first, second = (trial.run(workload).completions for _ in range(2))
            self._is_bitwise[key] = all(
                a.logits is not None and b.logits is not None and torch.equal(a.logits, b.logits)
                for a, b in zip(first, second, strict=True)
            )
        return self._is_bitwise[key]


@dataclass
class Trial:
    """An engine, a model, the right answers, and what has been compared so far."""

    lab: Laboratory
    spec: EngineSpec
    oracle: Oracle
    capabilities: frozenset[Capability]
    promise: Promise  # the one the running test is about
    ledger: Ledger = field(default_factory=Ledger)

    @property
    def subject(self) -> ModelUnderTest:
        return self.oracle.subject

    @property
    def has_logits(self) -> bool:
        return Capability.LOGITS in self.capabilities

    def build(self, config: EngineConfig) -> Engine:
        """A fresh engine; whoever builds one closes it (`run` and `check` do)."""
        with time_limit(BUILD_TIME_LIMIT_S, "building the engine"):
            return self.spec.factory(self.subject.model, config)

    def close(self, engine: Engine) -> None:
        if Capability.CLOSING in self.capabilities:
            engine.close()  # type: ignore[attr-defined]

    @contextmanager
    def engine(self, config: EngineConfig) -> Iterator[Engine]:
        """A fresh engine for several calls."""
        engine = self.build(config)
        try:
            yield engine
        finally:
            self.close(engine)

    def run(self, workload: Workload, engine: Engine | None = None) -> Outcome:
        """Run on the given engine, else on a fresh one. What the engine raises becomes a failure."""
        with self.reporting(workload, "the engine raised"):
            if engine is not None:
                outcome = run(engine, workload, self.lab.time_limit_s)
            else:
                with self.engine(workload.config) as fresh:
                    outcome = run(fresh, workload, self.lab.time_limit_s)
        with self.reporting(workload):
            self._require_logits(workload, outcome)
        return outcome

    def _require_logits(self, workload: Workload, outcome: Outcome) -> None:
        """An engine that has the capability fills them whenever it is asked to."""
        if not (workload.config.return_logits and self.has_logits) or workload.needs_stepping:
            return
        for completion in outcome.completions:
            if completion.token_ids and completion.logits is None:
                raise ConformanceFailure(
                    self.promise,
                    f"the engine has the capability logits, but those of request "
                    f"{completion.request_id!r} are None although config.return_logits is set",
                )

    def check(self, workload: Workload, engine: Engine | None = None) -> Outcome:
        """Run a workload of good requests and judge every answer against the oracle."""
        outcome = self.run(workload, engine)
        with self.reporting(workload):
            self.judge(workload.requests, outcome)
        return outcome

    def judge(self, requests: Sequence[Request], outcome: Outcome) -> None:
        check_completions(requests, outcome.completions, self.oracle, self.ledger)

    @contextmanager
    def reporting(
        self, workload: Workload, who: str = "judging what the engine gave raised"
    ) -> Iterator[None]:
        """Everything that goes wrong inside names engine, model and workload."""
        try:
            yield
        except ConformanceFailure as failure:
            if not failure.context:
                failure.context = self._context(workload, failure.promise)
            raise
        except EngineHang as hang:
            text = "\n".join([str(hang), *self._context(workload, Promise.P10)])
            raise EngineHang(text) from None
        except (Exception, SystemExit) as error:
            finding = f"{who} {type(error).__name__}: {error}"
            raised = EngineRaised(self.promise, finding, _last_frames(error))
            raised.context = self._context(workload, self.promise)
            raise raised from None

    def _context(self, workload: Workload, promise: Promise) -> list[str]:
        yaml = workload_as_yaml(workload, promise.id)
        return [
            f"engine: {self.spec.name}    model: {self.subject}",
            "workload, to paste into a file of cases/:",
            *(f"    {line}" for line in yaml.splitlines()),
        ]


def _last_frames(error: BaseException, count: int = 3) -> list[str]:
    frames = traceback.extract_tb(error.__traceback__)[-count:]
    return [f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}" for frame in frames]
