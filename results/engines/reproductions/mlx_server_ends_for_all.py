"""MLX-LM 0.32.2: one request ends mlx_lm.server for everybody, in four ways.

An exception of `insert_segments` or `next` ends the thread that generates, and nobody is answered any
more: (1) an empty prompt; (2) a prompt that the prompt cache holds whole, such as an earlier prompt with
its whole answer, of which nothing is left to feed; (3) a top_k of the whole vocabulary. (4) The logit_bias
of an unknown token ends the process. Exit status 1: reproduced.
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
drawn = {"temperature": 1.0, "top_k": VOCAB_SIZE}
for what in ("empty prompt", "prompt with its whole answer", "top_k of the whole vocabulary", "bias of an unknown token"):
    command = [sys.executable, "-m", "mlx_lm", "server", "--model", folder, "--port", str(PORT)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        before = asked("t1 t2 t3")
        prompt = {"e": "", "p": f"t1 t2 t3 {before}"}.get(what[0], "t4 t5")
        more = {"t": drawn, "b": {"logit_bias": {"1000000000": 5.0}}}.get(what[0], {})
        bad = asked(prompt, **more)
        after = asked("t1 t2 t3 t4") if server.poll() is None else f"the process has ended with {server.poll()}"
    finally:
        server.kill()
        server.wait()
    print(f"before: {before}\n{what}: {bad}\nafter: {after}")
    num_dead += after.startswith(("HTTP", "no answer", "the process"))
sys.exit(num_dead > 0)
