"""`batchproof probe-pack MODEL FILE`: makes, where the weights are, what `batchproof triage` asks.

What was computed is kept in FILE.part: the same command goes on where it was stopped.
"""

import argparse
import random
from dataclasses import astuple, dataclass, replace
from pathlib import Path

import torch

from batchproof.cli import choices
from batchproof.cli.progress import Progress
from batchproof.errors import UsageError
from batchproof.models.catalogue import resolve_dtype
from batchproof.models.embedded import DTYPES
from batchproof.oracle.oracle import Oracle
from batchproof.records.file_kinds import FileKind
from batchproof.records.probe_packs import PROBE_PACK, PrecisionNoise, Probe, ProbePack
from batchproof.run.devices import exact_device, num_threads
from batchproof.run.laboratory import Laboratory
from batchproof.triage import making
from batchproof.triage.noise import noise_of
from batchproof.triage.texts import Texts
from batchproof.validation.values import at_least

NUM_PROBES, CANDIDATES_PER_PROBE = 96, 4
NUM_AT_HAND = 64  # probes, all candidates, where there is no pack
LARGE = 50_000_000  # parameters, from which on there are half as many


@dataclass(frozen=True)
class Asked:
    """The arguments that decide what is in a pack."""

    seed: int
    model: str
    dtype: str
    is_chat: bool
    num_probes: int
    num_candidates: int

    def __str__(self) -> str:
        return ", ".join(map(str, astuple(self)))


@dataclass(frozen=True)
class Work:
    """What a command has computed before it was stopped."""

    of: Asked
    unit: float
    precisions: tuple[PrecisionNoise, ...]
    candidates: tuple[Probe, ...]
    num_rounds: int


WORK = FileKind("part of a probe pack", "batchproof.probe-pack-part", 2, Work)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="MODEL", help="a causal LM by path or hub id, or an embedded one"
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="the pack to write")
    parser.add_argument("--dtype", default="bfloat16", help=f"that is claimed: {', '.join(DTYPES)}")
    parser.add_argument("--device", default="cpu", help="where the weights are (default: cpu)")
    parser.add_argument(
        "--probes", type=int, default=NUM_PROBES, metavar="N", help="of the pack (default: %(default)s)"
    )
    parser.add_argument(
        "--candidates",
        type=int,
        metavar="N",
        help=f"prompts to choose them from (default: {CANDIDATES_PER_PROBE} for each)",
    )
    parser.add_argument("--chat", action="store_true", help="prompts are chats of one turn")
    parser.add_argument(
        "--seed",
        type=choices.whole,
        metavar="S",
        help="of the prompts (default: a random one, which nobody else knows)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Returns 0. Raises `UsageError` for an unknown model, dtype or device, and for wrong numbers."""
    at_least("--probes", arguments.probes, 2)
    num = arguments.candidates
    if num is None:
        num = CANDIDATES_PER_PROBE * arguments.probes
    at_least("--candidates", num, arguments.probes)
    path: Path = arguments.file
    if path.is_dir():
        raise UsageError(f"FILE '{path}' is a directory, but must be the pack to write")
    if not path.parent.is_dir():
        raise UsageError(f"FILE '{path}': there is no folder '{path.parent}'")
    part = path.with_name(f"{path.name}.part")
    seed = _seed_of(part) if arguments.seed is None else arguments.seed
    asked = Asked(seed, arguments.model, arguments.dtype, arguments.chat, arguments.probes, num)
    with exact_device(arguments.device) as device, num_threads(torch.get_num_threads()):
        lab = Laboratory(device, resolve_dtype(arguments.dtype), 3600.0)
        oracle = lab.oracle(arguments.model)
        pack = _made(oracle, Texts.of(oracle.subject, arguments.chat), part, asked)
    if pack is None:
        raise UsageError(f"no prompt of {arguments.model} could be used: none is named by its text")
    PROBE_PACK.write(pack, path)
    part.unlink(missing_ok=True)
    print(
        f"{path}: {len(pack.probes)} probes, {path.stat().st_size / 1000:.0f} kB, sigma {pack.unit:.3g}"
    )
    for each in pack.precisions:
        told = sum(making.telling(probe, each) for probe in pack.probes)
        print(
            f"  {each.name}: shifts margins by {each.shift:.3g} sigma; all probes tell {told:.0f} nats"
        )
    return 0


def _seed_of(part: Path) -> int:
    """Returns the seed of the work that goes on, else a new one."""
    return WORK.read(part).of.seed if part.exists() else random.SystemRandom().getrandbits(32)


def _made(oracle: Oracle, texts: Texts, part: Path, asked: Asked) -> ProbePack | None:
    known = WORK.read(part) if part.exists() else None
    if known is not None and known.of != asked:
        told = f"'{part}' is of other arguments: seed, model, dtype, --chat, --probes and --candidates"
        raise UsageError(f"{told} were {known.of}, not {asked}: remove it, or repeat them")
    seed, num = asked.seed, asked.num_candidates
    if known is None:
        known = Work(asked, *noise_of(oracle.subject, seed), (), 0)
        WORK.write(known, part)
    bar = Progress("candidates", "prompt", num)
    bar.step(known.num_rounds * making.ROUND)
    while known.num_rounds * making.ROUND < num:
        new = making.candidates(oracle, texts, seed, known.num_rounds * making.ROUND)
        found = (*known.candidates, *new)
        known = replace(known, candidates=found, num_rounds=known.num_rounds + 1)
        WORK.write(known, part)
        bar.step(making.ROUND)
    bar.close()
    noise = known.unit, known.precisions
    if not known.candidates:
        return None
    bar = Progress("under other settings", "probe", min(asked.num_probes, len(known.candidates)))
    pack = making.pack_of(oracle, texts, seed, asked.num_probes, noise, known.candidates, bar.step)
    bar.close()
    return pack


def pack_at_hand(oracle: Oracle, seed: int) -> ProbePack:
    """Returns a pack of a model in this process, for an engine that gets the model itself."""
    is_large = oracle.subject.model.num_parameters() > LARGE
    num = NUM_AT_HAND // 2 if is_large else NUM_AT_HAND
    return pack_without_texts(oracle, seed, num, num)


def pack_without_texts(oracle: Oracle, seed: int, num_probes: int, num_candidates: int) -> ProbePack:
    """Returns a pack of a model in this process, whose probes are asked in ids."""
    texts = Texts.of(oracle.subject, are_used=False)
    noise = noise_of(oracle.subject, seed)
    found = [
        each
        for start in range(0, num_candidates, making.ROUND)
        for each in making.candidates(oracle, texts, seed, start)
    ]
    return making.pack_of(oracle, texts, seed, num_probes, noise, found)
