"""How probes are asked: an engine through its trial, or an endpoint by its URL; and how its answers are
read: each token as its place among those that may stand there."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Protocol

from batchproof.api import Capability, EngineConfig, Request
from batchproof.checks.answers import order_findings
from batchproof.checks.broken import require
from batchproof.errors import BatchproofError
from batchproof.findings.finding import Rule
from batchproof.findings.finding_text import headline
from batchproof.records.probe_packs import Probe, ProbePack
from batchproof.records.texts import without_machine_paths
from batchproof.run.failures import ConformanceFailure, HangFailure
from batchproof.run.registry import engines_module
from batchproof.run.trial import Trial
from batchproof.triage.hypotheses import Seen
from batchproof.workload.workloads import Workload

COMPLETIONS, CHAT = "/completions", "/chat/completions"
WAITS_S = (1.0, 2.0, 4.0, 8.0, 16.0)  # before a request is sent again that a server has no room for
LONGEST_S = 120.0  # of an answer, which may come byte by byte
NUM_CUT_OFF = 64  # tokens that are asked for where the answer is cut off: short contexts allow it
BUSY = (429, 503)  # HTTP statuses
MOST_IN_A_ROW = 3  # requests without an answer, after which an endpoint is away
BROKEN_OFF = ("abort", "aborted", "error", "content_filter")  # finish reasons of what is no answer


@dataclass(frozen=True)
class Asked:
    """A probe by its number. `end`: the step at which an EOS is to end its answer; None: at the cap."""

    probe: int
    end: int | None = None


@dataclass(frozen=True)
class Scene:
    """Calls to one engine or endpoint, one after another; the requests of a call are sent together.
    `cut` are probes whose answers are cut off before the calls."""

    name: str
    calls: tuple[tuple[Asked, ...], ...]
    config: EngineConfig = field(default_factory=EngineConfig)
    cut: tuple[int, ...] = ()

    def within(self, budget: int) -> Scene:
        """Returns the first of its requests, so many at most."""
        calls = []
        for call in self.calls:
            if budget > 0:
                calls.append(call[:budget])
            budget -= len(call)
        return replace(self, calls=tuple(calls))


@dataclass(frozen=True)
class Said:
    """An answer, as ids or as a text; a refusal has no tokens. `num_prompt` is how many tokens the
    endpoint says that it read; None where it does not say so. `lost` says why there is no answer."""

    token_ids: tuple[int, ...] | None = None
    text: str = ""
    num_prompt: int | None = None
    lost: str = ""


class NoAnswerError(BatchproofError):
    """Raised if an engine raises, hangs, or answers other requests than those it was asked."""


class Door(Protocol):
    @property
    def capabilities(self) -> frozenset[Capability]:
        """What scenes it allows beyond requests that are sent together."""

    @property
    def can_cut(self) -> bool:
        """Whether answers can be cut off."""

    def ask(self, scene: Scene) -> list[Said]:
        """Returns the answers of all calls, in order. Raises `NoAnswerError`."""


class EngineDoor:
    """An engine that a trial builds, a fresh one for each scene."""

    can_cut = False

    def __init__(self, trial: Trial, pack: ProbePack) -> None:
        self._trial, self._probes = trial, pack.probes
        self.capabilities = trial.capabilities

    def workloads(self, scene: Scene) -> list[Workload]:
        """Returns the calls as the suite makes them."""
        return [
            Workload(tuple(self._request(i, each) for i, each in enumerate(call)), scene.config)
            for call in scene.calls
        ]

    def _request(self, number: int, asked: Asked) -> Request:
        probe = self._probes[asked.probe]
        eos = () if asked.end is None else (probe.steps[asked.end].tokens[0],)
        return Request(f"r{number}", probe.prompt, len(probe.steps), frozenset(eos))

    def ask(self, scene: Scene) -> list[Said]:
        found: list[Said] = []
        calls = self.workloads(scene)
        try:
            with (
                self._trial.reporting(calls[0], Rule.RAISED),
                self._trial.engine(scene.config) as engine,
            ):
                for call in calls:
                    completions = self._trial.run(call, engine).completions
                    with self._trial.reporting(call):
                        require(order_findings(call.requests, completions))
                    found += [Said(each.token_ids) for each in completions]
        except (ConformanceFailure, HangFailure) as failure:
            words = without_machine_paths(headline(failure.failure.finding))
            raise NoAnswerError(words) from failure
        return found


class UrlDoor:
    """An endpoint with OpenAI's interface of completions, or of chats, which answers in texts. It is
    asked in texts as well, or in ids where it takes them.

    At most `most_at_once` requests are under way, and at most `max_rate` begin in a second. A server
    that is busy is asked again later. A request without an answer is no more than that, until there are
    several in a row.
    """

    capabilities: frozenset[Capability] = frozenset()
    can_cut = True

    def __init__(
        self,
        server: Any,
        model: str,
        pack: ProbePack,
        most_at_once: int,
        max_rate: float | None = None,
        takes_ids: bool = False,
    ) -> None:
        self._server, self.pack, self._takes_ids = server, pack, takes_ids
        self.model, self._body = model, {"model": model, "temperature": 0}
        self._path = CHAT if pack.is_chat else COMPLETIONS
        self._most_at_once = most_at_once
        self._gap_s = 1 / max_rate if max_rate else 0.0
        self._lock = threading.Lock()
        self._next = 0.0
        self._is_over = threading.Event()  # nobody waits for the answers of this scene any more
        self._open: set[Any] = set()  # exchanges under way

    def ask(self, scene: Scene) -> list[Said]:
        for probe in scene.cut:
            self._cut(probe)
        found: list[Said] = []
        self._is_over.clear()
        with ThreadPoolExecutor(self._most_at_once) as pool:
            try:
                for call in scene.calls:
                    found += pool.map(self._answer, call)
                    latest = found[-MOST_IN_A_ROW:]
                    if len(latest) == MOST_IN_A_ROW and all(each.lost for each in latest):
                        raise NoAnswerError(found[-1].lost)
            except BaseException:  # also Ctrl-C and SIGTERM
                self._is_over.set()
                for each in [*self._open]:
                    each.cut()
                raise
        return found

    def _fields(self, probe: Probe, num_tokens: int) -> dict[str, Any]:
        if self.pack.is_chat:
            prompt: dict[str, Any] = {"messages": [{"role": "user", "content": probe.text}]}
        else:
            prompt = {"prompt": [*probe.prompt] if self._takes_ids else probe.text}
        return {**self._body, **prompt, "max_tokens": num_tokens}

    def _answer(self, asked: Asked) -> Said:
        client = engines_module("adapters.openai.client")
        probe = self.pack.probes[asked.probe]
        body = self._fields(probe, len(probe.steps))
        for wait_s in (*WAITS_S, None):
            self._take_turn()
            try:
                return _said(self._read(body))
            except client.Cut:
                return Said(lost=f"an answer has no end after {LONGEST_S:g} s")
            except client.Refused as error:
                raise NoAnswerError(f"the endpoint refuses a prompt: {error}") from None
            except client.EngineFailed as error:
                if error.status not in BUSY or wait_s is None:
                    return Said(lost=str(error))
            self._is_over.wait(wait_s)
        raise AssertionError

    def _read(self, body: dict[str, Any]) -> Any:
        """Returns the JSON of an answer. Raises as `Exchange.read` does."""
        with closing(self._server.exchange("POST", self._path, body)) as exchange:
            timer = threading.Timer(LONGEST_S, exchange.cut)
            self._open.add(exchange)
            timer.start()
            try:
                if self._is_over.is_set():
                    exchange.cut()
                return exchange.read()
            finally:
                timer.cancel()
                self._open.discard(exchange)

    def _take_turn(self) -> None:
        with self._lock:
            now = time.monotonic()
            begin = max(now, self._next)
            self._next = begin + self._gap_s
        self._is_over.wait(begin - now)

    def _cut(self, number: int) -> None:
        """Begins an answer and cuts it off at its first token."""
        client = engines_module("adapters.openai.client")
        body = self._fields(self.pack.probes[number], NUM_CUT_OFF) | {"stream": True}
        self._take_turn()
        try:
            with closing(self._server.exchange("POST", self._path, body)) as exchange:
                next(exchange.read_events(), None)
                exchange.cut()
        except (client.Refused, client.EngineFailed, client.Cut):
            return  # what is judged is what comes after it


def _said(answer: Any) -> Said:
    """Returns what is said in the JSON of a completion or a chat."""
    try:
        (choice,) = answer["choices"]
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        usage = answer.get("usage") or {}
        num, reason = usage.get("prompt_tokens"), choice.get("finish_reason")
        is_whole = isinstance(text, str) and reason not in BROKEN_OFF
    except (TypeError, KeyError, ValueError, AttributeError):
        is_whole = False
    if not is_whole:
        return Said(lost=f"an answer is no completion: {str(answer)[:200]}")
    return Said(text=text, num_prompt=num if isinstance(num, int) else None)


def read(asked: Asked, said: Said, probe: Probe, scene: str) -> Seen:
    """Returns how an answer leaves the path. What is no token of a step, or missing, or behind the end,
    has no place."""
    if said.token_ids is None:
        return _read_text(asked.probe, said.text, probe, scene)
    last = len(probe.steps) - 1
    if asked.end is not None:
        eos = probe.steps[asked.end].tokens[0]
        last = next(i for i, step in enumerate(probe.steps) if step.tokens[0] == eos)
    for number in range(last + 1):
        step = probe.steps[number]
        token = said.token_ids[number] if number < len(said.token_ids) else None
        place = step.tokens.index(token) if token in step.tokens else len(step.tokens)
        if place:
            told = str(token) if place == len(step.tokens) else ""
            return Seen(asked.probe, number, place, scene, told)
    went_on = len(said.token_ids) > last + 1
    return Seen(asked.probe, last, len(probe.steps[last].tokens) if went_on else 0, scene)


def num_said(said: Said, probe: Probe) -> int | None:
    """Returns how many tokens an answer has; of a text, None unless the path begins with it."""
    if said.token_ids is not None:
        return len(said.token_ids)
    paths = accumulate((step.texts[0] for step in probe.steps), initial="")
    alike = (i for i, path in enumerate(paths) if path.strip() == said.text.strip())
    return next(alike, None)


def _read_text(number: int, text: str, probe: Probe, scene: str) -> Seen:
    rest, texts = text.lstrip(), [step.texts for step in probe.steps]
    # Servers drop the blank before the first word, or do not.
    texts[0] = tuple(each.lstrip() for each in texts[0])
    for step, those in enumerate(texts):
        place = _place_of(those, rest)
        if place:
            return Seen(number, step, place, scene, rest if place == len(those) else "")
        rest = rest[len(those[0]) :]
    return Seen(number, len(texts) - 1, 0, scene)


def _place_of(texts: Sequence[str], rest: str) -> int:
    """Returns the place of the longest token that the text begins with: which of two that begin alike
    was meant, the longer one says. The best may be a blank, of which nothing is left."""
    fitting = [(len(t), -i) for i, t in enumerate(texts) if (t or not i) and rest.startswith(t)]
    if fitting:
        return -max(fitting)[1]
    return texts.index("") if not rest and "" in texts else len(texts)


def seen_in(scene: Scene, answers: Sequence[Said], pack: ProbePack) -> Iterator[Seen]:
    """Yields how each answer of a scene leaves its path. Lost ones tell nothing."""
    asked = [each for call in scene.calls for each in call]
    for each, said in zip(asked, answers, strict=True):
        if not said.lost:
            yield read(each, said, pack.probes[each.probe], scene.name)
