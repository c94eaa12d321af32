"""MLX-LM 0.32.2: the sliding window of Mistral, Mixtral, Qwen 2 and Gemma 2 is dropped without a
word."""

import tempfile
from pathlib import Path

import mlx.core as mx
import transformers
from mlx_lm.utils import load_model
from setup_mlx import HEADS, SHAPE, save

WINDOW = 4
one, other = [1, 2, 3, 4, 5, 6, 7, 8, 9], [40, 2, 3, 4, 5, 6, 7, 8, 9]
sizes = {**SHAPE, **HEADS, "sliding_window": WINDOW}
untied, kinds = {**sizes, "tie_word_embeddings": False}, {"layer_types": ["sliding_attention"]}
qwen = {"use_sliding_window": True, "max_window_layers": 0, **kinds}
configs = [transformers.MistralConfig(**untied), transformers.MixtralConfig(**untied)]
configs += [transformers.Qwen2Config(**untied, **qwen), transformers.Gemma2Config(**sizes, **kinds)]
is_wrong = False
for config in configs:
    with tempfile.TemporaryDirectory() as folder:
        save(config, folder)
        model, _ = load_model(Path(folder))
    last = [model(mx.array([prompt]))[0, -1] for prompt in (one, other)]
    distance = mx.abs(last[0] - last[1]).max().item()
    print(f"{type(config).__name__}, window {WINDOW}: another first token of 9 moves the last logits by {distance:.3f}, but should by 0")
    is_wrong |= distance > 1e-4
raise SystemExit(is_wrong)
