"""`batchproof triage URL --pack FILE --watch`: a canary beside live traffic.

docs/watching.md says what is asked, and why an honest endpoint is blamed once a year at most. (Shiryaev
and Roberts' M <- L (M + 1) would grow of itself for a cause that the pack cannot tell.)
"""

import hashlib
import json
import math
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from operator import mul
from pathlib import Path
from typing import Any

from batchproof.errors import UsageError
from batchproof.records.decode import encode
from batchproof.records.file_kinds import replace_text
from batchproof.records.probe_packs import ProbePack
from batchproof.records.triage import CLEAN, UNDECIDED, WATCH_STATE, Verdict, WatchState
from batchproof.triage.asking import Asked, Door, NoAnswerError, Said, Scene, seen_in
from batchproof.triage.deciding import BELIEF, Rule, Triage
from batchproof.triage.hypotheses import Evidence, Seen, hypotheses
from batchproof.triage.scenes import TOGETHER, alone, alternately

YEAR_S = 365.25 * 24 * 3600
COMPANY_EVERY = 8  # turns: in each such one, requests are sent together
NUM_TO_NAME = 48  # requests that triage may spend after an alarm
FEW = 0.5  # share of the probes that is left, below which a new pack is due
METRICS = {  # help, by name
    "requests_total": "Requests that were sent.",
    "failures_total": "Requests that got no answer.",
    "alarms_total": "Alarms.",
    "evidence": "Log10 of the years in which an honest endpoint gets so far once; 0 is an alarm.",
    "probes_left": "Probes of the pack that can still tell something.",
    "last_answer_timestamp_seconds": "When the last answer came, in Unix time.",
}


@dataclass
class Watch:
    """Watches one endpoint through a door. `path` is that of the state, `metrics` that of a text file
    for Prometheus. Prints a JSON line a verdict, and one on the state every `report_s` seconds."""

    door: Door
    pack: ProbePack
    state: WatchState
    path: Path
    metrics: Path | None = None
    report_s: float = 3600.0
    most_at_once: int = 4

    def __post_init__(self) -> None:
        self._evidence = Evidence(self.pack, [*hypotheses(self.pack, ())])
        self._weights = self._evidence.weights
        self._order = alternately(len(self.pack.probes))
        self._error = ""  # of the last turn

    @property
    def years(self) -> float:
        """In how many years an honest endpoint gets so far once, at most; 1 is an alarm."""
        return sum(map(mul, self.state.sums, self._weights)) * self.state.every_s / YEAR_S

    def run(self) -> Verdict:
        """Returns the verdict of an alarm. Raises `UsageError` if no probe is left, or a file cannot be
        written. The state is on disk after each turn, and goes on from there."""
        self._keep()
        self._note(
            f"is watched, every {self.state.every_s:g} s, from {self.state.num_requests} requests on"
        )
        next_report = time.monotonic() + self.report_s
        while self.years < 1:
            time.sleep(self.state.every_s)  # first, so that restarts do not ask at a higher rate
            self.turn()
            self._keep()
            if time.monotonic() > next_report:
                verdict: Verdict = UNDECIDED if self._error else CLEAN
                self._report(verdict, self._error or "as an honest endpoint")
                next_report += self.report_s
        return self._alarm()

    def turn(self) -> None:
        """Asks one scene, and takes its answers into account."""
        scene, state = self._scene(), self.state
        num = sum(map(len, scene.calls))
        turns, asked = state.num_turns + 1, state.num_requests + num
        try:
            said = self.door.ask(scene)
        except NoAnswerError as caught:
            said = [Said(lost=str(caught))] * num
        lost = [each.lost for each in said if each.lost]
        counted: dict[str, Any] = {"num_failed": state.num_failed + len(lost)}
        error = lost[0] if len(lost) == num else ""
        if not error:
            counted["last_answer"] = time.time()
        if bool(error) != bool(self._error):
            self._note(f"is away: {error}" if error else "answers again")
        self._error = error
        weighed = self._weighed(seen_in(scene, said, self.pack))
        self.state = replace(weighed, num_turns=turns, num_requests=asked, **counted)

    def _scene(self) -> Scene:
        left = [each for each in self._order if self.state.num_left[each]]
        if not left:
            raise UsageError("no probe of the pack is left that can tell something: make a new pack")
        is_alone = (self.state.num_turns + 1) % COMPANY_EVERY > 0
        num = min(1 if is_alone else self.most_at_once, len(left))
        probes = [left[(self.state.num_requests + i) % len(left)] for i in range(num)]
        return alone(probes) if num == 1 else Scene(TOGETHER, (tuple(map(Asked, probes)),))

    def _weighed(self, turn: Iterable[Seen]) -> WatchState:
        """Returns the state after the answers of one more turn, of each as much as still counts."""
        sums, num_left = [max(each, 1.0) for each in self.state.sums], [*self.state.num_left]
        for each in turn:
            left = num_left[each.probe]
            seen = each if each.step < left else replace(each, step=left - 1, place=0)
            sums = [*map(mul, sums, self.ratios(seen))]
            if seen.place:
                num_left[seen.probe] = seen.step
        return replace(self.state, sums=tuple(sums), num_left=tuple(num_left))

    def ratios(self, seen: Seen) -> tuple[float, ...]:
        """Returns the likelihood ratio of each hypothesis for one answer."""
        return tuple(map(math.exp, self._evidence.against([seen])))

    def _alarm(self) -> Verdict:
        """Lets triage name the cause; where it does not, what was seen until now does, if it can."""
        self._note("has changed: triage names the cause")
        parts = dict(zip(self._evidence.known, map(mul, self.state.sums, self._weights), strict=True))
        best = max(parts, key=lambda each: parts[each])
        belief = sum(parts[h] for h in parts if h.verdict == best.verdict) / sum(parts.values())
        verdict: Verdict = best.verdict if belief >= BELIEF else UNDECIDED
        why = f"likeliest: {best.name}, which triage did not see right after it"
        rule = Rule(budget=NUM_TO_NAME, most_at_once=self.most_at_once)
        found = Triage(self.door, self.pack, rule, is_ours=False).decide(self.state.endpoint)
        if found.chance <= rule.alpha and found.belief >= BELIEF:
            verdict, why, belief = found.verdict, found.why, found.belief
        self.state = replace(self.state, num_alarms=self.state.num_alarms + 1)
        self._report(verdict, why, belief=belief, seen=found.evidence)
        self.state = replace(self.state, sums=(1.0,) * len(parts))
        self._keep()
        return verdict

    def _figures(self) -> dict[str, float]:
        state = self.state
        counts = state.num_requests, state.num_failed, state.num_alarms
        evidence = round(math.log10(self.years), 3)
        left = sum(each > 0 for each in state.num_left)
        return dict(zip(METRICS, (*counts, evidence, left, state.last_answer), strict=True))

    def _note(self, words: str) -> None:
        print(f"{self.state.endpoint} {words}", file=sys.stderr, flush=True)

    def _report(self, verdict: Verdict, why: str, **more: object) -> None:
        figures = self._figures()
        is_new_due = figures["probes_left"] < FEW * len(self._order)
        if is_new_due:
            self._note(f"needs a new pack: {figures['probes_left']} probes are left")
        when = datetime.now(UTC).isoformat(timespec="seconds")
        of = {"time": when, "endpoint": self.state.endpoint, "model": self.state.model}
        told = {"verdict": verdict, "why": why, **more, "needs_new_pack": is_new_due}
        print(json.dumps({**of, **told, **figures}), flush=True)

    def _keep(self) -> None:
        WATCH_STATE.write(self.state, self.path)
        if self.metrics is not None:
            replace_text(self.metrics, "".join(self._metric_lines()))

    def _metric_lines(self) -> Iterator[str]:
        named = {"endpoint": self.state.endpoint, "model": self.state.model}
        labels = ",".join(f"{k}={json.dumps(v, ensure_ascii=False)}" for k, v in named.items())
        for key, value in self._figures().items():
            name, kind = f"batchproof_watch_{key}", "counter" if key.endswith("_total") else "gauge"
            yield f"# HELP {name} {METRICS[key]}\n# TYPE {name} {kind}\n{name}{{{labels}}} {value}\n"


def opened(path: Path, endpoint: str, model: str, pack: ProbePack, every_s: float) -> WatchState:
    """Returns the state that a file keeps of this watch, or a new one where there is no file. Raises
    `UsageError` if it is that of another watch."""
    known = [*hypotheses(pack, ())]
    digest = hashlib.sha256(json.dumps(encode([pack, *known])).encode()).hexdigest()[:16]
    lengths = tuple(len(each.steps) for each in pack.probes)
    new = WatchState(endpoint, model, digest, every_s, (1.0,) * len(known), lengths)
    found = WATCH_STATE.read(path) if path.exists() else new
    for name in ("endpoint", "model", "pack", "every_s"):
        if (other := getattr(found, name)) != (value := getattr(new, name)):
            told = f"'{path}' is of a watch with {name} {other!r}, not {value!r}"
            raise UsageError(f"{told}: remove it, or name another --output")
    return found
