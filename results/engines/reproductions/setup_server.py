"""A server of completions in a process of its own, on a checkpoint in `folder`, and what it answers. Words: t0 to t255."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PORT = 8431
scratch = tempfile.TemporaryDirectory()
folder = scratch.name
words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(256)}, unk_token="t0"))
words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
PreTrainedTokenizerFast(tokenizer_object=words, eos_token="t0").save_pretrained(folder)


@contextmanager
def served(command: list[str]) -> Iterator[subprocess.Popen]:
    words = [sys.executable, "-m", *command, "--port", str(PORT)]
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield server
    finally:
        server.kill()
        server.wait()


def asked(prompt: str, max_tokens: int = 6, **more: object) -> str:
    body = {"model": folder, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **more}
    request = Request(f"http://127.0.0.1:{PORT}/v1/completions", json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    for _ in range(200):
        try:
            with urlopen(request, timeout=60) as answer:
                return str(json.load(answer)["choices"][0]["text"])
        except HTTPError as error:
            return f"HTTP {error.code} {error.read().decode()[:200]}"
        except URLError:  # the server is not up yet
            time.sleep(1)
        except OSError as error:
            return f"no answer: {error!r}"
    raise TimeoutError("the server did not come up")
