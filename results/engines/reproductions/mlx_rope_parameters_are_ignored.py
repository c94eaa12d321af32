"""MLX-LM 0.32.2: most models ignore the rope_theta of a config that transformers 5 has saved."""

import json
import tempfile
from pathlib import Path

import mlx.core as mx
import mlx_lm.models
import transformers
from mlx_lm.utils import load_model
from setup_mlx import HEADS, SHAPE, save

theta, is_wrong = 5e5, False
prompt = mx.array([[token % 60 for token in range(120)]])
for config_class in (transformers.LlamaConfig, transformers.Qwen2Config):
    rope = {"rope_theta": theta, "rope_type": "default"}
    with tempfile.TemporaryDirectory() as folder:
        save(config_class(**SHAPE, **HEADS, rope_parameters=rope, tie_word_embeddings=False), folder)
        as_saved, _ = load_model(Path(folder))
        told, _ = load_model(Path(folder), model_config={"rope_theta": theta})
        written = json.loads(Path(folder, "config.json").read_text())["rope_parameters"]
    base = as_saved.layers[0].self_attn.rope.base
    distance = mx.abs(as_saved(prompt) - told(prompt)).max().item()
    print(f"{config_class.__name__}: config.json says {written}, the model takes {base}")
    print(f"  told rope_theta as well, it gives other logits, by up to {distance:.3f}")
    is_wrong |= base != theta
sources = {each: each.read_text() for each in Path(mlx_lm.models.__path__[0]).glob("*.py")}
reads = [text for text in sources.values() if "rope_theta: float" in text]
print(f"{len(reads)} models declare rope_theta, {sum('rope_parameters' in each for each in reads)} of them name rope_parameters")
raise SystemExit(is_wrong)
