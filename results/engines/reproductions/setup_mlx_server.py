"""A tiny Llama with random weights in `folder`, mlx_lm.server on it, and a request. Words: t0 to t63."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import transformers
from setup_mlx import HEADS, SHAPE, VOCAB_SIZE, save
from tokenizers import Tokenizer, models, pre_tokenizers

PORT = 8437
scratch = tempfile.TemporaryDirectory()
folder = scratch.name
save(transformers.LlamaConfig(**SHAPE, **HEADS, tie_word_embeddings=False, rope_theta=1e4, eos_token_id=0), folder)
words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(VOCAB_SIZE)}, unk_token="t0"))
words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="t0").save_pretrained(folder)


@contextmanager
def served() -> Iterator[subprocess.Popen]:
    command = [sys.executable, "-m", "mlx_lm", "server", "--model", folder, "--port", str(PORT)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield server
    finally:
        server.kill()
        server.wait()


def asked(prompt: str, **more: object) -> str:
    body = {"model": "default_model", "prompt": prompt, "max_tokens": 4, "temperature": 0, **more}
    request = Request(f"http://127.0.0.1:{PORT}/v1/completions", json.dumps(body).encode())
    for _ in range(120):
        try:
            with urlopen(request, timeout=60) as answer:
                return str(json.load(answer)["choices"][0]["text"])
        except HTTPError as error:
            return f"HTTP {error.code} {error.read().decode()[:120]}"
        except URLError:  # the server is not up yet
            time.sleep(1)
        except OSError as error:
            return f"no answer: {error!r}"
    raise TimeoutError("the server did not come up")
