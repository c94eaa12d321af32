"""A tiny GPT-2 with random weights, a server of it, and a request."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

torch.manual_seed(0)
scratch = tempfile.TemporaryDirectory()
folder = scratch.name
shape = {"vocab_size": 256, "n_positions": 256, "n_embd": 64, "n_layer": 2, "n_head": 4, "initializer_range": 0.2}
GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=0)).save_pretrained(folder)
words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(256)}, unk_token="t0"))
words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
PreTrainedTokenizerFast(tokenizer_object=words, eos_token="t0").save_pretrained(folder)
serve = [sys.executable, "-m", "transformers.cli.transformers", "serve", folder, "--device", "cpu", "--port", "8431"]
serve += ["--continuous-batching", "--cb-num-blocks", "256", "--cb-max-batch-tokens", "256"]


@contextmanager
def served() -> Iterator[None]:
    server = subprocess.Popen(serve, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        server.kill()
        server.wait()


def asked(prompt: str, max_tokens: int = 6, **more: object) -> str:
    body = {"model": folder, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **more}
    request = Request("http://127.0.0.1:8431/v1/completions", json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    for _ in range(200):
        try:
            with urlopen(request, timeout=60) as answer:
                return str(json.load(answer)["choices"][0]["text"])
        except HTTPError as error:
            return f"HTTP {error.code} {error.read().decode()[:200]}"
        except URLError:  # the server is not up yet
            time.sleep(1)
    raise TimeoutError("the server did not come up")
