"""Endpoints that answer as rounded copies of a model do, behind the door that triage asks through.

    prompts and paths -> logits of each rounded copy (one pass) -> tables -> endpoints

An endpoint has noise of its own kernels, one sigma of margins, fixed for each token; and a little that
is new in each answer, as sums change with the shape of a batch.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from batchproof.api import Capability, Request
from batchproof.models.catalogue import ModelUnderTest
from batchproof.oracle.choosing import processed
from batchproof.oracle.precision import AS_SERVED, Precision
from batchproof.oracle.rounding import coarse_to_score
from batchproof.records.probe_packs import Probe
from batchproof.records.triage import CLEAN, CONFIG, CORRUPT, MIXED, ROUNDING, Verdict
from batchproof.triage.asking import Asked, Said, Scene
from batchproof.triage.making import Configured, as_asked
from batchproof.triage.noise import PRECISIONS, logits_of
from batchproof.triage.scenes import AFTER_CUT, AGAIN

KERNEL, JITTER = 1.0, 0.3  # sigma, of margins
NUM_KEPT = 64  # tokens of a step that noise of these sizes may make the best
FINER = (AS_SERVED, Precision("float32"), Precision("float16"))  # precisions of honest endpoints
COARSER = tuple(each for each in PRECISIONS if each.is_quantized)
INT4 = Precision("bfloat16", weights="int4")
BOS, LAST = "stands before each prompt (BOS)", "only the last 32 tokens of a prompt are read"
TEMPLATES = (BOS, LAST, "repetition_penalty 1.1 by default")  # in names of configurations
COMPANY, ANYWHERE = "company", "anywhere"  # where answers are wrong, beside names of scenes
Floats = NDArray[np.float32]
Variant = tuple[Precision, str, bool]  # precision, template, whether all tokens are kept
VARIANTS: tuple[Variant, ...] = (
    *((each, "", False) for each in (*FINER, *COARSER)),
    *((each, template, False) for each in FINER for template in TEMPLATES),
    (AS_SERVED, "", True),
)


@dataclass(frozen=True)
class Kind:
    """What is wrong with an endpoint, the verdict on it, and words of which its cause has one.

    `coarse`, a precision, is that of a `share` of the replicas. A share `wrong` of the answers `where`
    is that to another prompt.
    """

    name: str
    verdict: Verdict
    causes: tuple[str, ...] = ("",)
    coarse: Precision | None = None
    share: float = 1.0
    template: str = ""
    temperature: float = 0.0
    wrong: float = 0.0
    where: str = ""
    cap: int | None = None


HONEST = Kind("honest", CLEAN)
LEAKED = ("not asked for alone", "'together'")
KINDS = (
    *(Kind(str(each).removeprefix("bfloat16, "), ROUNDING, (str(each),), each) for each in COARSER),
    *(Kind(each, CONFIG, (each[:20],), template=each) for each in TEMPLATES),
    Kind("temperature 0.7", CONFIG, ("temperature",), temperature=0.7),
    Kind("answers cut at 8 tokens", CONFIG, ("cut at 8",), cap=8),
    Kind("1 of 8 replicas with int4 weights", MIXED, ("int4 weights in",), INT4, 1 / 8),
    Kind("1 of 8 replicas corrupt", CORRUPT, ("every scene",), wrong=1 / 8, where=ANYWHERE),
    Kind("leak of 1 % in company", CORRUPT, LEAKED, wrong=0.01, where=COMPANY),
    Kind("leak of 5 % in company", CORRUPT, LEAKED, wrong=0.05, where=COMPANY),
    Kind("stale prefix, 20 % of second answers", CORRUPT, (AGAIN,), wrong=0.2, where=AGAIN),
    Kind("leak after an abort, 20 %", CORRUPT, (AFTER_CUT,), wrong=0.2, where=AFTER_CUT),
)


@dataclass(frozen=True)
class Table:
    """What a copy makes of each step of a probe: its best tokens, (steps, kept), and their logits in
    sigma."""

    tokens: NDArray[np.int64]
    values: Floats

    def chosen(self, fixed: Floats, rng: np.random.Generator, temperature: float = 0.0) -> Floats:
        """Returns the places that win, (steps,). `temperature` is in sigma."""
        values = self.values + fixed
        if temperature:
            values = values + temperature * rng.gumbel(size=values.shape)
        noise: Floats = rng.standard_normal(values.shape, np.float32)
        return (values + JITTER / math.sqrt(2) * noise).argmax(-1)


Tables = Mapping[Variant, Sequence[Table]]  # by probe


@torch.inference_mode()
def tables(
    subject: ModelUnderTest,
    probes: Sequence[Probe],
    unit: float,
    configurations: Mapping[str, Configured],
) -> Tables:
    """Returns the tables of each variant."""
    asked = [as_asked(each) for each in probes]
    paths = [tuple(step.tokens[0] for step in each.steps) for each in probes]
    found: dict[Variant, Sequence[Table]] = {}
    for precision, template, is_whole in VARIANTS:
        change = next((c for name, c in configurations.items() if template and template in name), None)
        given = [change(each) for each in probes] if change else asked
        rows = []
        copies = _logits(coarse_to_score(subject, precision), given, paths)
        for copied, request, path in zip(copies, given, paths, strict=True):
            logits = processed(copied, request, path) if template else copied
            if precision.kv_cache:  # the first token is made before the cache is read
                (first,) = _logits(subject.model, [request], [path[:1]])
                logits = torch.cat((first, logits[1:]))
            top = logits.topk(logits.shape[-1] if is_whole else NUM_KEPT)
            rows.append(Table(top.indices.numpy(), (top.values / unit).float().numpy()))
        found[precision, template, is_whole] = rows
    return found


def _logits(
    model: Any, asked: Sequence[Request], paths: Sequence[tuple[int, ...]]
) -> Iterator[torch.Tensor]:
    """Yields what each path is chosen from, teacher forced, (tokens, vocab)."""
    fed = [(*each.prompt_token_ids, *path[:-1]) for each, path in zip(asked, paths, strict=True)]
    for path, logits in zip(paths, logits_of(model, fed), strict=True):
        yield logits[-len(path) :]


def kernel_noise(shape: tuple[int, ...], *seed: int) -> Floats:
    noise: Floats = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return np.float32(KERNEL / math.sqrt(2)) * noise


class Endpoint:
    """A door to an endpoint of a kind. Every second one says how many tokens it reads."""

    capabilities: frozenset[Capability] = frozenset()
    can_cut = True

    def __init__(
        self, kind: Kind, number: int, probes: Sequence[Probe], known: Tables, unit: float
    ) -> None:
        self._kind, self._number, self._probes, self._known = kind, number, probes, known
        self._finer = AS_SERVED if kind.temperature else FINER[number % len(FINER)]
        self._temperature = kind.temperature / unit
        self._rng = np.random.default_rng((number, 1))
        self.num_tokens = {0: 0}  # of all answers, by the number of requests

    def ask(self, scene: Scene) -> list[Said]:
        found = []
        for number, call in enumerate(scene.calls):
            met = {ANYWHERE, COMPANY} if len(call) > 1 else {ANYWHERE}
            met |= {scene.name} if scene.name != AGAIN or number else set()
            found += [self._said(each, call, self._kind.where in met) for each in call]
        num, tokens = max(self.num_tokens.items())
        new = sum(len(each.token_ids or ()) for each in found)
        self.num_tokens[num + len(found)] = tokens + new
        return found

    def _said(self, asked: Asked, call: Sequence[Asked], may_be_wrong: bool) -> Said:
        kind, probe, prompt = self._kind, asked.probe, self._probes[asked.probe].prompt
        if may_be_wrong and self._rng.random() < kind.wrong:
            others = [each.probe for each in call if each.probe != probe]
            probe = int(self._rng.choice(others or [*{*range(len(self._probes))} - {probe}]))
        tokens, cap = self._answer(probe), len(self._probes[asked.probe].steps)
        padded = [*tokens, *tokens[-1:] * cap][: min(cap, kind.cap or cap)]
        length = min(len(prompt), 32) if kind.template == LAST else len(prompt) + (kind.template == BOS)
        return Said(tuple(padded), num_prompt=length if self._number % 2 else None)

    def _answer(self, probe: int) -> list[int]:
        """Follows the path to the first token that is not the best of float64; what is behind it counts
        for nothing."""
        kind = self._kind
        is_coarse = kind.coarse is not None and self._rng.random() < kind.share
        precision = kind.coarse if kind.coarse is not None and is_coarse else self._finer
        table = self._known[precision, kind.template, kind.temperature > 0][probe]
        fixed = kernel_noise(table.values.shape, self._number, 2 + is_coarse, probe)
        places = table.chosen(fixed, self._rng, self._temperature)
        told = table.tokens[np.arange(len(places)), places].tolist()
        path = [step.tokens[0] for step in self._probes[probe].steps]
        end = next((i for i, (a, b) in enumerate(zip(told, path, strict=True)) if a != b), len(path))
        return [*path[:end], *told[end : end + 1], *path[end + 1 :]]
