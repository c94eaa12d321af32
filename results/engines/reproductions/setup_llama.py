"""Tiny models with random weights, converted and served by llama.cpp's own programs. Words: t3 to t255.

LLAMA_SERVER is the path of its llama-server, LLAMA_CPP that of its source, which has the converter.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import sentencepiece
import torch
import transformers

server = os.environ["LLAMA_SERVER"]
source = os.environ["LLAMA_CPP"]
version = subprocess.run([server, "--version"], capture_output=True, text=True, check=True)
print(next(line for line in (version.stderr + version.stdout).splitlines() if "version" in line))
scratch = tempfile.TemporaryDirectory()


def tiny(config_class: type = transformers.LlamaConfig, **settings: object) -> transformers.PreTrainedModel:
    """Its first three words, which are special, are never the likeliest."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
    usual = {"num_hidden_layers": 2, "initializer_range": 0.2, "tie_word_embeddings": False}
    config = config_class(**{**sizes, **usual, **settings})
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        model.lm_head.weight[:3] = 0
    return model


def converted(model: transformers.PreTrainedModel) -> str:
    folder = tempfile.mkdtemp(dir=scratch.name)
    model.save_pretrained(folder)
    words = (f"t{i}" for i in range(3, 256))
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=words, model_prefix=f"{folder}/tokenizer", model_type="word", vocab_size=256, minloglevel=2
    )
    program = [sys.executable, f"{source}/convert_hf_to_gguf.py", folder, "--outtype", "f32"]
    subprocess.run([*program, "--outfile", f"{folder}.gguf"], check=True, capture_output=True)
    return f"{folder}.gguf"


@contextmanager
def served(gguf: str, *flags: str) -> Iterator[str]:
    """Serves with keys and values in float32, and yields the address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    exact = ["-ctk", "f32", "-ctv", "f32", "-fa", "off", "-t", "1"]
    program = [server, "-m", gguf, "--port", port, "--no-webui", "-np", "4", "-c", "2048", *exact, *flags]
    running = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        while True:
            try:
                urlopen(f"{address}/health").close()
                break
            except (HTTPError, URLError):  # it is not up yet
                if running.poll() is not None:
                    raise
                time.sleep(0.1)
        yield address
    finally:
        running.kill()
        running.wait()


def asked(address: str, path: str, body: dict) -> dict:
    request = Request(address + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urlopen(request, timeout=60) as answer:
            return json.load(answer)
    except HTTPError as error:
        return json.load(error)


def answered(address: str, prompt: list[int], num: int, **more: object) -> list[int]:
    body = {"prompt": prompt, "n_predict": num, "temperature": 0, "return_tokens": True, **more}
    return asked(address, "/completion", body)["tokens"]
