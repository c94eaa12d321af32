"""`batchproof dropin KIND DIR`: a test file for an engine's own tests, with checkpoint and answers.

The file needs nothing of Batchproof where it runs: the engine, pytest, and what lies beside it.
"""

import argparse
import json
import random
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file, save_file

from batchproof.cli.checkpoint import empty_folder, save
from batchproof.errors import UsageError
from batchproof.models.embedded import KNOWN
from batchproof.models.hash_tables import VOCAB_SIZE
from batchproof.run.registry import engines_module
from batchproof.validation.values import one_of

Converter = Callable[[Path, Path], list[str]]  # the command, for a checkpoint and what is made of it
SHORTENED = "gpt2-long"  # every layer sees all; 0.5 MB with the positions that the prompts have


class Kind(NamedTuple):
    """A kind of test file: what it is for, and the model whose checkpoint it reads."""

    what: str
    model: str = "gemma2-hash"  # windows beside full layers, heads of 64; 0.6 MB in bfloat16


KINDS = {
    "vllm": Kind("vLLM's own tests and those of its plugins, in process"),
    "sglang": Kind("SGLang's tests, against the server that they launch"),
    "llama.cpp": Kind("llama.cpp's server tests: tools/server/tests/unit"),
    "transformers": Kind("transformers' tests: padded and continuous batching", SHORTENED),
    "openai": Kind("plain pytest against a server of the checkpoint: OPENAI_BASE_URL"),
}
TEST, ANSWERS, CHECKPOINT = "test_batch_changes_no_token.py", "answers.json", "checkpoint"
CONVERTER = "llama-server"  # the released engine whose environment has it
POSITIONS, NUM_POSITIONS = "transformer.wpe.weight", 256
NUM_SHARERS, NUM_OTHERS = 12, 18  # of prompts that begin alike, and of others
SHARED = 70  # tokens: two blocks of 32, and a part of one
NUM_ECHOES, REACH = 3, 80  # prompts that say the same twice; tokens that an answer depends on, or more


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = "; ".join(f"{name}: {kind.what}" for name, kind in KINDS.items())
    parser.add_argument("kind", metavar="KIND", help=kinds)
    parser.add_argument(
        "directory", metavar="DIR", help="folder to write to, created if needed; must be empty"
    )


def run(arguments: argparse.Namespace) -> int:
    """Writes the three and returns 0. Raises `UsageError` for an unknown kind, a folder that is not
    empty, or a converter that is missing."""
    name = one_of("KIND", arguments.kind, KINDS)
    model = KINDS[name].model
    command = converter() if name == "llama.cpp" else None
    folder = empty_folder(arguments.directory)
    save(model, folder / CHECKPOINT, torch.bfloat16)
    if model == SHORTENED:
        shorten(folder / CHECKPOINT)
    if command is not None:
        convert(command, folder / CHECKPOINT)
    (folder / TEST).write_text(files(__package__).joinpath(f"{name}.txt").read_text("utf-8"), "utf-8")
    made = cases(model)
    (folder / ANSWERS).write_text(json.dumps(made) + "\n", "utf-8")
    print(f"written: {folder / TEST}, {len(made)} answers")
    return 0


def converter() -> Converter:
    """Returns what gives the command that llama.cpp's converter is run by. Raises `UsageError` if that
    is not installed."""
    libraries = engines_module("adapters.released.libraries")
    library, python = libraries.LIBRARIES[CONVERTER], libraries.interpreter(CONVERTER)
    if python is None:
        raise UsageError(
            f"KIND 'llama.cpp' needs the converter of llama.cpp, `python -m batchproof install "
            f"{CONVERTER}`; the others need none: {', '.join(sorted(KINDS.keys() - {'llama.cpp'}))}"
        )
    places = {"python": python, "home": library.folder, "built": library.build.folder}
    words = (*library.server.conversion.command, "bf16")
    return lambda folder, model: [
        each.format(**places, folder=folder, model=model, conversion="mended") for each in words
    ]


def convert(command: Converter, checkpoint: Path) -> None:
    """Replaces the weights of a checkpoint by a GGUF file."""
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch, "made")
        subprocess.run(command(checkpoint, made), check=True, capture_output=True)
        shutil.move(made / "model.gguf", checkpoint)
    (checkpoint / "model.safetensors").unlink()


def shorten(checkpoint: Path) -> None:
    """Leaves a GPT-2 its first positions."""
    weights, config = checkpoint / "model.safetensors", checkpoint / "config.json"
    held = load_file(weights)
    held[POSITIONS] = held[POSITIONS][:NUM_POSITIONS].clone()
    save_file(held, weights, {"format": "pt"})
    said = json.loads(config.read_text("utf-8"))
    config.write_text(json.dumps(said | {"n_positions": NUM_POSITIONS}), "utf-8")


def cases(model: str) -> list[dict[str, list[int] | list[str]]]:
    """Returns prompts with their only right answers, more than the test has slots and blocks: some
    begin alike, some repeat themselves, so that drafts from n-grams are rejected and accepted."""
    rng = random.Random(0)
    oracle = KNOWN[model].oracle
    assert oracle is not None, "it is a constructed model"
    begin = [rng.randrange(VOCAB_SIZE) for _ in range(SHARED)]
    prompts = [[*begin[: rng.choice((64, SHARED))], number, 5] for number in range(NUM_SHARERS)]
    for number in range(NUM_OTHERS // 3):  # a short one, a long one, and one that leaves it early
        short, long, rest = (
            [rng.randrange(VOCAB_SIZE) for _ in range(n)] for n in (5, 20 + 3 * number, 6)
        )
        prompts += [short, long * (1 + number % 2), [*long[:6], *rest]]
    for _ in range(NUM_ECHOES):  # n-grams draft what followed the stretch before, and then too much
        stretch = [rng.randrange(VOCAB_SIZE) for _ in range(REACH)]
        prompts.append([*stretch, *oracle(stretch, 10), *stretch])
    words = engines_module("adapters.word_tokenizer")
    answers = [oracle(prompt, 8 + number % 17) for number, prompt in enumerate(prompts)]
    return [
        {"prompt": prompt, "answer": answer, "words": [words.word_of(each, 256) for each in answer]}
        for prompt, answer in zip(prompts, answers, strict=True)
    ]
