"""`batchproof triage ENGINE...` or `triage URL --pack FILE`: does an engine answer as its weights do?
`--watch` asks without end, at a low rate (`watching`).

Exit status: that of the worst verdict: 1 CORRUPT, 2 UNDECIDED, 3 CONFIG, 4 ROUNDING, 5 MIXED, 0 if all
are CLEAN. 2 for wrong input, too.
"""

import argparse
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from batchproof.cli import choices
from batchproof.cli.config_file import OWN, find, required_engines
from batchproof.cli.result_files import write_result
from batchproof.errors import EngineHang, OracleError, UnsupportedModelError, UsageError
from batchproof.models.catalogue import resolve_dtype
from batchproof.models.embedded import DTYPES, EMBEDDED
from batchproof.records.probe_packs import PROBE_PACK, ProbePack
from batchproof.records.provenance import made_now
from batchproof.records.triage import (
    CLEAN,
    CONFIG,
    CORRUPT,
    MIXED,
    ROUNDING,
    TRIAGE,
    UNDECIDED,
    VERDICTS,
    EndpointTriage,
    TriageRecord,
    Verdict,
)
from batchproof.replay.record import write
from batchproof.requirements.promises import Promise
from batchproof.run.devices import exact_device, num_threads
from batchproof.run.engine_names import has_own_process, parse_options
from batchproof.run.failures import ConformanceFailure, HangFailure
from batchproof.run.laboratory import Laboratory
from batchproof.run.registry import EngineSpec, engines_module, resolve_engine
from batchproof.run.trial import Trial
from batchproof.triage.asking import EngineDoor, Scene, UrlDoor
from batchproof.triage.deciding import Rule, Triage
from batchproof.triage.making import require_pack_of
from batchproof.triage.pack_command import pack_at_hand
from batchproof.triage.watching import Watch, opened
from batchproof.validation.values import at_least, require

DEFAULT_MODELS = ("gpt2-hash", "llama-twins", "mistral-hash", "bamba-hash")
ONE_MODEL = ("llama-twins",)  # of an engine whose server has a single checkpoint
EXIT_CODES = {CLEAN: 0, CORRUPT: 1, UNDECIDED: 2, CONFIG: 3, ROUNDING: 4, MIXED: 5}
TIME_LIMIT_S = 300.0
URL = ("http://", "https://")
API_KEY = "OPENAI_API_KEY"  # the environment variable
WHEN = "during triage"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    choices.add_engines(
        parser, f"as for pytest --engine, or the URL of a server (default: those of {OWN})"
    )
    parser.add_argument(
        "--pack", type=Path, metavar="FILE", help="what the server is asked (`batchproof probe-pack`)"
    )
    parser.add_argument("--served-as", metavar="NAME", help="of the model (default: the first listed)")
    choices.add_repeatable(
        parser,
        "--model",
        "M",
        f"without a pack: {', '.join(EMBEDDED)}, or a causal LM by hub id or path; repeatable "
        f"(default: what a server's model is named after, else {', '.join(DEFAULT_MODELS)})",
    )
    parser.add_argument(
        "--dtype", default="float32", metavar="D", help=f"without a pack: {', '.join(DTYPES)}"
    )
    parser.add_argument("--device", default="cpu", help="where the models are (default: cpu)")
    for flag, default, words in (
        ("--alpha", 0.001, "chance to blame an honest engine"),
        ("--beta", 0.02, "chance to miss a cause that is excluded"),
    ):
        parser.add_argument(flag, type=float, default=default, help=f"{words} (default: %(default)s)")
    parser.add_argument("--budget", type=int, default=300, help="requests at most (default: 300)")
    parser.add_argument(
        "--at-once", type=int, metavar="N", help="requests under way (default: 32; 4 with --watch)"
    )
    parser.add_argument("--max-rate", type=float, metavar="R", help="requests a second (default: any)")
    choices.add_seed(parser)
    choices.add_time_limit(parser, TIME_LIMIT_S, "seconds for an engine")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("triage"),
        metavar="DIR",
        help="where record, page and failures go (default: triage/)",
    )
    watch = parser.add_argument_group("beside live traffic")
    words = "ask a server a --pack without end, until an alarm; the state is kept in --output"
    watch.add_argument("--watch", action="store_true", help=words)
    for flag, default, what in (("--every", 60, "turns"), ("--report-every", 3600, "reports")):
        words = f"seconds between {what} (default: {default})"
        watch.add_argument(flag, type=choices.seconds, metavar="S", help=words)
    watch.add_argument("--metrics", type=Path, metavar="FILE", help="to write for Prometheus")


def rule_of(arguments: argparse.Namespace, deadline: float = math.inf) -> Rule:
    """Returns the rule. Raises `UsageError` for wrong numbers."""
    for name in ("alpha", "beta"):
        value = getattr(arguments, name)
        require(0 < value < 0.5, f"--{name}", value, "above 0 and below 0.5")
    at_least("--budget", arguments.budget, 1)
    at_least("--at-once", arguments.at_once, 1)
    rate = arguments.max_rate
    require(rate is None or rate > 0, "--max-rate", rate, "above 0")
    return Rule(
        arguments.alpha, arguments.beta, arguments.budget, arguments.at_once, deadline, arguments.seed
    )


def run(arguments: argparse.Namespace) -> int:
    """Returns the exit status. Raises `UsageError` for an unknown engine, model, dtype or device, a
    wrong pack, and an endpoint that does not answer."""
    if arguments.at_once is None:
        arguments.at_once = 4 if arguments.watch else 32
    rule_of(arguments)
    if arguments.watch:
        return EXIT_CODES[_watched(arguments)]
    for flag in ("every", "report_every", "metrics"):
        if (value := getattr(arguments, flag)) is not None:
            raise UsageError(f"--{flag.replace('_', '-')} is {value}, but is for --watch alone")
    engines = arguments.engines or required_engines(find())
    pack = PROBE_PACK.read(arguments.pack) if arguments.pack else None
    if pack is not None and arguments.model:
        raise UsageError(f"--model is given beside --pack, which is of {pack.model}: give one of them")
    subjects = {each: _subject(each, pack, arguments) for each in engines}  # before any work
    session = Session(arguments, pack, choices.writable(arguments.output))
    try:
        session.triage(subjects)
    finally:  # also what was found before Ctrl-C, or before a model that is unknown
        session.write()
    worst = max((each.verdict for each in session.found), key=VERDICTS.index, default=UNDECIDED)
    return EXIT_CODES[worst]


@dataclass
class Session:
    """One call of the command, and what it has found until now."""

    arguments: argparse.Namespace
    pack: ProbePack | None
    output: Path
    found: list[EndpointTriage] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)

    def triage(self, subjects: Mapping[str, UrlDoor | EngineSpec]) -> None:
        """Asks all of them, and prints what is found."""
        asked = self.arguments
        with exact_device(asked.device) as device, num_threads(torch.get_num_threads()):
            # A call may take the whole time: a slow engine is not corrupt.
            dtype = resolve_dtype(self.pack.dtype if self.pack else asked.dtype)
            lab = Laboratory(device, dtype, asked.time_limit)
            for text, what in subjects.items():
                if isinstance(what, UrlDoor):
                    rule = rule_of(asked, time.monotonic() + asked.time_limit)
                    self._add(Triage(what, what.pack, rule, is_ours=False, note=_note).decide(text))
                else:
                    self._on_models(lab, what)
                    engines_module("adapters.child").kill_all()  # servers keep gigabytes
        for refusal in self.refusals:
            print(refusal)

    def write(self) -> None:
        """Writes record and page, if there is anything to tell."""
        asked, told = self.arguments, (tuple(self.found), tuple(self.refusals))
        if any(told):
            record = TriageRecord(made_now(), asked.seed, asked.alpha, asked.beta, *told)
            write_result(TRIAGE, record, _page, self.output, "triage", is_whole=True)

    def _add(self, found: EndpointTriage) -> None:
        self.found.append(found)
        print("\n".join(lines_of(found)), flush=True)

    def _on_models(self, lab: Laboratory, spec: EngineSpec) -> None:
        """Asks an engine on each model; the first on which answers are corrupt is the last."""
        models = [self.pack.model] if self.pack else self.arguments.model or _models_of(spec.name)
        end = time.monotonic() + self.arguments.time_limit
        for number, model in enumerate(models):
            now = time.monotonic()
            rule = rule_of(self.arguments, now + max(0.0, end - now) / (len(models) - number))
            print(
                f"{model}: ranking answers here, then asking {spec.name}", file=sys.stderr, flush=True
            )
            verdict: Verdict | None = None
            try:
                verdict = self._on_model(lab, spec, model, rule)
            except UnsupportedModelError as error:
                self.refusals.append(f"{spec.name} refuses {model}: {error}")
            except EngineHang as error:
                self.refusals.append(f"{spec.name} on {model}: nothing can be said: {error}")
            lab.look_after(spec, lab.subject(model), WHEN)
            if verdict == CORRUPT:
                return

    def _on_model(self, lab: Laboratory, spec: EngineSpec, model: str, rule: Rule) -> Verdict:
        oracle = lab.oracle(model)
        if self.pack is not None:
            require_pack_of(oracle, self.pack)
        pack = self.pack or pack_at_hand(oracle, self.arguments.seed)
        trial = Trial(lab, spec, oracle, Promise.P1)
        door = EngineDoor(trial, pack)
        triage = Triage(door, pack, rule, is_ours=True)
        found = triage.decide(spec.name)
        if found.verdict == CORRUPT and triage.wrong_scene is not None:
            _write_failure(trial, door, triage.wrong_scene, self.output)
        self._add(found)
        return found.verdict


def door_to(url: str, pack: ProbePack, arguments: argparse.Namespace) -> UrlDoor:
    """Returns the door to an endpoint. Raises `UsageError` if no model is named and it lists none."""
    openai = engines_module("adapters.openai")
    name = arguments.served_as
    server = openai.server_of(url, os.environ.get(API_KEY))
    if name is None:
        name = next(iter(openai.listed_at(server, "name it with --served-as")))
    takes_ids = not pack.is_chat and openai.takes_token_ids(server, name)
    return UrlDoor(server, name, pack, arguments.at_once, arguments.max_rate, takes_ids)


def _watched(arguments: argparse.Namespace) -> Verdict:
    if len(arguments.engines) != 1 or not arguments.pack or not arguments.engines[0].startswith(URL):
        raise UsageError("--watch needs one URL and the --pack that its server is asked")
    (url,) = arguments.engines
    pack = PROBE_PACK.read(arguments.pack)
    door = door_to(url, pack, arguments)
    path = choices.writable(arguments.output) / "watch.json"
    state = opened(path, url, door.model, pack, arguments.every or 60.0)
    files = path, arguments.metrics, arguments.report_every or 3600.0
    return Watch(door, pack, state, *files, arguments.at_once).run()


def _subject(text: str, pack: ProbePack | None, arguments: argparse.Namespace) -> UrlDoor | EngineSpec:
    if pack is not None and text.startswith(URL):
        return door_to(text, pack, arguments)
    return resolve_engine(_with_server(text))


def _note(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def _with_server(text: str) -> str:
    scheme, separator, _ = text.partition("://")
    if separator and "?" not in scheme and scheme not in ("http", "https"):
        raise UsageError(f"{text!r} begins with {scheme}://, but a server is http:// or https://")
    if not text.startswith(URL):
        return text
    return str(engines_module("adapters.openai").text_for(text))


def _models_of(text: str) -> Sequence[str]:
    served = parse_options(text, text.partition("?")[2]).get("model") if "?" in text else None
    if served is not None and Path(str(served)).name in EMBEDDED:
        return (Path(str(served)).name,)
    if text.startswith("openai"):
        raise UsageError(
            f"the server's model {served!r} is named after none of {', '.join(EMBEDDED)}: give a pack "
            f"of it with --pack, or its checkpoint with --model"
        )
    return ONE_MODEL if has_own_process(text) else DEFAULT_MODELS


def _write_failure(trial: Trial, door: EngineDoor, scene: Scene, directory: Path) -> None:
    """Judges the scene as the suite does, and writes what it finds for `batchproof replay`; nothing
    where the suite finds nothing."""
    judging = trial.renewed()
    try:
        with judging.engine(scene.config) as engine:
            for call in door.workloads(scene):
                judging.check(call, engine)
    except (ConformanceFailure, HangFailure) as error:
        path = write(judging, error.failure, directory, "batchproof triage", "triage")
        print(f"batchproof replay {path}", flush=True)
    except OracleError:
        return


def lines_of(found: EndpointTriage) -> Iterator[str]:
    yield f"{found.engine}: {found.verdict}"
    yield f"  {found.model} ({found.dtype}): {found.why}"
    counts = f"{found.num_requests:,} requests, {found.num_tokens:,} tokens, {found.seconds:.0f} s"
    yield f"    {counts}; scenes: {', '.join(found.scenes)}"
    if found.verdict != CLEAN:
        yield f"    an honest engine shows as much with a chance of at most {found.chance:.2g}"
        yield f"    this cause has {found.belief:.0%} of the likelihood of all that were considered"
    elif found.open:
        yield f"    not told from it: {'; '.join(found.open[:6])}"
    yield from (f"    {text}" for text in found.evidence)


def _page(record: TriageRecord) -> str:
    lines = ["# Triage", "", *record.made.lines(), f"* seed {record.seed}", ""]
    for each in record.found:
        lines += ["```", *lines_of(each), "```", ""]
    return "\n".join([*lines, *(f"* {each}" for each in record.refusals)])
