"""Tiny models with random weights, and their answers. The checkpoint is written here: the library needs no other."""

import json
import os
import random
from array import array
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

os.environ |= {"RUST_LOG": "off", "RUST_BACKTRACE": "0", "RAYON_NUM_THREADS": "1"}
os.environ["MISTRALRS_CPU_KV_F32"] = "1"  # keys and values in float32
import mistralrs  # it reads the environment

VOCAB_SIZE = 64
HIDDEN, INTERMEDIATE, HEADS, KV_HEADS = 128, 64, 4, 2
SIZES = {"vocab_size": VOCAB_SIZE, "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "max_position_embeddings": 512}
SIZES |= {"rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False, "head_dim": 32}
DECODER = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}
WIDTH = HIDDEN * KV_HEADS // HEADS
TENSORS = {"model.embed_tokens": (VOCAB_SIZE, HIDDEN), "model.norm": (HIDDEN,), "lm_head": (VOCAB_SIZE, HIDDEN)}
for layer in ("model.layers.0.", "model.layers.1."):
    TENSORS |= {f"{layer}{name}_layernorm": (HIDDEN,) for name in ("input", "post_attention")}
    TENSORS |= {f"{layer}self_attn.{name}_proj": (HIDDEN, HIDDEN) for name in "qo"}
    TENSORS |= {f"{layer}self_attn.{name}_proj": (WIDTH, HIDDEN) for name in "kv"}
    TENSORS |= {f"{layer}mlp.{name}_proj": (INTERMEDIATE, HIDDEN) for name in ("gate", "up")}
    TENSORS[f"{layer}mlp.down_proj"] = HIDDEN, INTERMEDIATE


def save(folder: str, architecture: str = "LlamaForCausalLM", others: Mapping[str, Sequence[int]] = {}, **settings: object) -> None:
    """Writes a checkpoint in float32 with the tensors of a Llama, or others of these shapes; the library reads those that
    its model has. The tokenizer has one word a token."""
    draw, header, data = random.Random(0), {}, array("f")
    for name, shape in {**TENSORS, **others}.items():
        start = 4 * len(data)
        data.extend(draw.gauss(0, 0.15) if len(shape) > 1 else 1.0 for _ in range(prod(shape)))
        header[f"{name}.weight"] = {"dtype": "F32", "shape": shape, "data_offsets": [start, 4 * len(data)]}
    head = json.dumps(header).encode()
    Path(folder, "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + data.tobytes())
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


def answer(folder: str, prompt: Sequence[int], max_tokens: int) -> list[int]:
    """Returns the answer of an engine that has no other request."""
    engine = runner(folder)
    return [*stream(engine, prompt, max_tokens)]


def told(tokens: Iterator[int]) -> list[int] | str:
    """Returns the tokens of a stream, or its error."""
    try:
        return [*tokens]
    except ValueError as error:
        return str(error).splitlines()[0]


def same(tokens: Sequence[int], others: Sequence[int]) -> int:
    """Returns how many tokens are equal before the first that is not."""
    return len(os.path.commonprefix([tokens, others]))
