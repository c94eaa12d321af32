"""Tiny models with random weights, and their answers."""

import importlib
from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx
import transformers
from mlx import nn
from mlx.utils import tree_flatten, tree_map
from mlx_lm.generate import BatchGenerator
from mlx_lm.utils import _get_classes, load_config

VOCAB_SIZE = 64
SHAPE = {"vocab_size": VOCAB_SIZE, "hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 64}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256}


def randomised(model: nn.Module) -> nn.Module:
    mx.random.seed(0)
    model.update(tree_map(lambda each: mx.random.normal(each.shape) * 0.3, model.parameters()))
    mx.eval(model.parameters())
    return model


def tiny(model_type: str, **settings: object) -> nn.Module:
    module = importlib.import_module(f"mlx_lm.models.{model_type}")
    return randomised(module.Model(module.ModelArgs.from_dict({"model_type": model_type, **settings})))


def save(config: transformers.PretrainedConfig, folder: str) -> None:
    """Saves a checkpoint with the config as transformers writes it."""
    config.save_pretrained(folder)
    model_class, args_class = _get_classes(load_config(Path(folder)))
    model = randomised(model_class(args_class.from_dict(load_config(Path(folder)))))
    mx.save_safetensors(f"{folder}/model.safetensors", dict(tree_flatten(model.parameters())))


def answers(model: nn.Module, prompts: Sequence[list[int]], max_tokens: int = 6, **settings: object) -> list[list[int]]:
    """Returns what one BatchGenerator makes of the prompts."""
    generator = BatchGenerator(model, **settings)
    numbers = generator.insert([list(each) for each in prompts], [max_tokens] * len(prompts))
    told: dict[int, list[int]] = {number: [] for number in numbers}
    while responses := generator.next_generated():
        for each in responses:
            told[each.uid].append(each.token)
    return [told[number] for number in numbers]
