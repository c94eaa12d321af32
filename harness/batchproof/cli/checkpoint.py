"""`python -m batchproof checkpoint MODEL DIR`: writes an embedded model, for engines that load it.

The weights are those of the suite, saved by `save_pretrained`. In the tokenizer that is saved with
them each token is one word of fixed width, so that a server that takes text serves exactly the token
ids it is given. A model with a draft head has it in the folder `head`, one with low-rank adapters has
them in `adapters`, as PEFT writes them.
"""

import argparse
from pathlib import Path

import torch

from batchproof.cli.choices import writable
from batchproof.decoding.adapters import ADAPTERS, save_adapters
from batchproof.decoding.speculation import HEAD, new_head
from batchproof.errors import UsageError
from batchproof.models.catalogue import load_model, resolve_dtype, without_bars
from batchproof.models.embedded import DTYPES, KNOWN
from batchproof.run.registry import engines_module

AGREEMENT = 0.75  # of a draft head, so that some drafts are kept and some are not


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=", ".join(KNOWN))
    parser.add_argument(
        "directory", metavar="DIR", help="folder to write to, created if needed; must be empty"
    )
    parser.add_argument(
        "--dtype", default="float32", help=f"{', '.join(DTYPES)} (default: %(default)s)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Writes model and tokenizer and returns 0. Raises `UsageError` for an unknown model or a folder
    that is not empty."""
    if arguments.model not in KNOWN:
        raise UsageError(f"MODEL {arguments.model!r} is no embedded model: {', '.join(KNOWN)}")
    dtype = resolve_dtype(arguments.dtype)
    save(arguments.model, empty_folder(arguments.directory), dtype)
    return 0


def empty_folder(text: str) -> Path:
    """Returns the folder DIR, made if needed. Raises `UsageError` if it cannot be, or is not empty."""
    directory = writable(Path(text), "DIR")
    if any(directory.iterdir()):
        raise UsageError(f"DIR {text!r} holds something already, but must be empty")
    return directory


def save(model: str, directory: Path, dtype: torch.dtype) -> None:
    """Writes an embedded model and its tokenizer to a folder, and says so."""
    subject = load_model(model, torch.device("cpu"), dtype)
    tokenizers = engines_module("adapters.word_tokenizer")
    head = new_head(subject.model, AGREEMENT)
    with without_bars():
        subject.model.save_pretrained(directory)
        tokenizers.words_tokenizer(subject.vocab_size).save_pretrained(directory)
        if head is not None:
            head.save(directory / HEAD)
    num_adapters = save_adapters(subject.model, directory / ADAPTERS)
    also = f", and a draft head that is right for {AGREEMENT:.0%} of the tokens" if head else ""
    also += f", and {num_adapters} low-rank adapters in {ADAPTERS}" if num_adapters else ""
    print(f"written: {directory}, {subject.name} in {subject.dtype_name}{also}")
