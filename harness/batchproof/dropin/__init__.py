"""`batchproof dropin KIND DIR`: a test file for an engine's own tests, with checkpoint and answers.

The file needs nothing of Batchproof where it runs: the engine, pytest, and what lies beside it.
"""

from __future__ import annotations

import argparse
import json
import random
from importlib.resources import files

import torch

from batchproof.cli.checkpoint import empty_folder, save
from batchproof.models.embedded import KNOWN
from batchproof.models.gemma2_hash_oracle import VOCAB_SIZE
from batchproof.run.registry import engines_module
from batchproof.validation.values import one_of

KINDS = {
    "vllm": "vLLM's own tests, in process: prefix hits, preemptions and n-gram drafts must be met",
    "openai": "plain pytest against a server that serves the checkpoint: OPENAI_BASE_URL",
}
MODEL = "gemma2-hash"  # windows beside full layers, heads of 64; 0.6 MB in bfloat16
TEST, ANSWERS, CHECKPOINT = "test_batch_changes_no_token.py", "answers.json", "checkpoint"
NUM_SHARERS, NUM_OTHERS = 12, 12  # of prompts that begin alike, and of others
SHARED = 70  # tokens: two blocks of 32, and a part of one
NUM_ECHOES, REACH = 3, 80  # prompts that say the same twice; tokens that an answer depends on, or more


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `batchproof dropin`."""
    kinds = "; ".join(f"{name}: {what}" for name, what in KINDS.items())
    parser.add_argument("kind", metavar="KIND", help=kinds)
    parser.add_argument(
        "directory", metavar="DIR", help="folder to write to, created if needed; must be empty"
    )


def run(arguments: argparse.Namespace) -> int:
    """Writes the three and returns 0. Raises `UsageError` for an unknown kind or a folder that is not
    empty."""
    kind = one_of("KIND", arguments.kind, KINDS)
    folder = empty_folder(arguments.directory)
    save(MODEL, folder / CHECKPOINT, torch.bfloat16)
    (folder / TEST).write_text(files(__package__).joinpath(f"{kind}.txt").read_text("utf-8"), "utf-8")
    made = cases()
    (folder / ANSWERS).write_text(json.dumps(made) + "\n", "utf-8")
    print(f"written: {folder / TEST}, {len(made)} answers")
    return 0


def cases() -> list[dict[str, list[int] | list[str]]]:
    """Returns prompts with their only right answers: some begin alike, some repeat themselves, so that
    drafts from n-grams are rejected and accepted, and all are more than the slots and blocks of the
    test."""
    rng = random.Random(0)
    oracle = KNOWN[MODEL].oracle
    assert oracle is not None, "it is a constructed model"
    begin = [rng.randrange(VOCAB_SIZE) for _ in range(SHARED)]
    prompts = [[*begin[: rng.choice((64, SHARED))], number, 5] for number in range(NUM_SHARERS)]
    for number in range(NUM_OTHERS):
        part = [rng.randrange(VOCAB_SIZE) for _ in range(rng.randrange(1, 40))]
        prompts.append(part * 2 if number % 2 else part)
    for _ in range(NUM_ECHOES):  # behind a stretch that came before, n-grams draft what is right
        stretch = [rng.randrange(VOCAB_SIZE) for _ in range(REACH)]
        prompts.append([*stretch, *oracle(stretch, 8), *stretch])
    words = engines_module("adapters.word_tokenizer")
    made: list[dict[str, list[int] | list[str]]] = []
    for number, prompt in enumerate(prompts):
        answer = oracle(prompt, 8 + number % 17)
        made.append(
            {
                "prompt": prompt,
                "answer": answer,
                "words": [words.word_of(token, 256) for token in answer],
            }
        )
    return made
