"""Tiny models with random weights, and their answers. The checkpoint is written here: the library needs no other."""

import importlib
import json
import math
import os
import random
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ |= {"RUST_LOG": "off", "RUST_BACKTRACE": "0", "RAYON_NUM_THREADS": "1"}
os.environ["MISTRALRS_CPU_KV_F32"] = "1"  # keys and values in float32
mistralrs = importlib.import_module("mistralrs")  # reads the environment
VOCAB_SIZE = 64
HIDDEN, INTERMEDIATE, HEADS, KV_HEADS = 128, 64, 4, 2
SIZES = {"vocab_size": VOCAB_SIZE, "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "max_position_embeddings": 512}
SIZES |= {"rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False, "head_dim": 32}
DECODER = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}


def shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields the tensors of a Llama or a Mistral."""
    width = HIDDEN * KV_HEADS // HEADS
    yield "model.embed_tokens.weight", (VOCAB_SIZE, HIDDEN)
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (VOCAB_SIZE, HIDDEN)
    for layer in (f"model.layers.{index}." for index in range(2)):
        yield from ((f"{layer}{name}_layernorm.weight", (HIDDEN,)) for name in ("input", "post_attention"))
        yield from ((f"{layer}self_attn.{name}_proj.weight", (HIDDEN, HIDDEN)) for name in "qo")
        yield from ((f"{layer}self_attn.{name}_proj.weight", (width, HIDDEN)) for name in "kv")
        yield from ((f"{layer}mlp.{name}_proj.weight", (INTERMEDIATE, HIDDEN)) for name in ("gate", "up"))
        yield f"{layer}mlp.down_proj.weight", (HIDDEN, INTERMEDIATE)


def save(folder: str, architecture: str = "LlamaForCausalLM", tensors: Mapping[str, tuple[int, ...]] | None = None, **settings: object) -> None:
    """Writes a checkpoint in float32, and a tokenizer of one word a token. `tensors`: the shape of each."""
    draw, header, data = random.Random(0), {}, bytearray()
    for name, shape in (tensors or dict(shapes())).items():
        size = math.prod(shape)
        values = [draw.gauss(0, 0.15) if len(shape) > 1 else 1.0 for _ in range(size)]
        start = len(data)
        data += struct.pack(f"<{size}f", *values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, len(data)]}
    head = json.dumps(header).encode()
    Path(folder, "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)
    vocabulary = {f"t{token:02d}": token for token in range(VOCAB_SIZE)}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "?"}
    tokenizer = {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "WhitespaceSplit"}, "decoder": DECODER, "model": model}
    texts = {"config": {"architectures": [architecture], **SIZES, **settings}, "tokenizer": tokenizer}
    texts["tokenizer_config"] = {"chat_template": "{{ messages[0]['content'] }}"}
    for name, text in texts.items():
        Path(folder, f"{name}.json").write_text(json.dumps(text))


def runner(folder: str, **settings: object) -> Any:
    return mistralrs.Runner(mistralrs.Which.Plain(folder, dtype=mistralrs.ModelDType.F32), token_source="none", **{"prefix_cache_n": 0, **settings})


def stream(runner: Any, prompt: Sequence[int], max_tokens: int, **settings: object) -> Iterator[int]:
    """Sends a greedy request, and returns its tokens as they come."""
    settings = {"temperature": 0.0, **settings}
    chat = mistralrs.ChatCompletionRequest(" ".join(f"t{token:02d}" for token in prompt), "default", max_tokens=max_tokens, stream=True, **settings)
    return (int(chunk.choices[0].delta.content[1:]) for chunk in runner.send_chat_completion_request(chat))


def answer(folder: str, prompt: Sequence[int], max_tokens: int, **settings: object) -> list[int]:
    """Returns the answer of an engine that has no other request."""
    engine = runner(folder)
    return [*stream(engine, prompt, max_tokens, **settings)]


def told(tokens: Iterator[int]) -> list[int] | str:
    """Returns the tokens of a stream, or its error."""
    try:
        return [*tokens]
    except ValueError as error:
        return str(error).splitlines()[0]


def same(tokens: Sequence[int], others: Sequence[int]) -> int:
    """Returns how many tokens are equal before the first that is not."""
    return next((i for i, (one, other) in enumerate(zip(tokens, others, strict=False)) if one != other), len(others))
