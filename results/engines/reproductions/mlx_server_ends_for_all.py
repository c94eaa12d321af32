"""MLX-LM 0.32.2: one request ends mlx_lm.server for everybody, in three ways.

An exception of `insert_segments` or `next` is not caught in the thread that generates: the thread ends,
and nobody is answered any more. (1) An empty prompt. (2) A prompt that the prompt cache holds whole, such
as an earlier prompt with its whole answer: nothing is left to feed, which counts as empty. (3) A top_k of
the whole vocabulary, while it is read. Exit status 1: reproduced.
"""

import json
import subprocess
import sys
import tempfile
import time
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


num_dead = 0
for what in ("an empty prompt", "a prompt with its whole answer", "a top_k of the whole vocabulary"):
    command = [sys.executable, "-m", "mlx_lm", "server", "--model", folder, "--port", str(PORT)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        before = asked("t1 t2 t3")
        if what == "an empty prompt":
            bad = asked("")
        elif what == "a prompt with its whole answer":
            bad = asked(f"t1 t2 t3 {before}")
        else:
            bad = asked("t4 t5", temperature=1.0, top_k=VOCAB_SIZE)
        after = asked("t1 t2 t3 t4")
    finally:
        server.kill()
        server.wait()
    print(f"before: {before}\n{what}: {bad}\nafter: {after}")
    num_dead += not after.startswith("t")
sys.exit(num_dead > 0)
