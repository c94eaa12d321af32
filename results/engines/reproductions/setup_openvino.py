"""A tiny GPT-2 with random weights, exported to `folder`, pipelines on it, and requests of token ids."""

import tempfile
from collections.abc import Sequence

import numpy as np
import openvino as ov
import openvino_genai as genai
import torch
from optimum.exporters.openvino import export_from_model
from transformers import GPT2Config, GPT2LMHeadModel

F32 = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
torch.manual_seed(0)
config = GPT2Config(vocab_size=256, n_positions=256, n_embd=64, n_layer=2, n_head=4, initializer_range=0.2)
scratch = tempfile.TemporaryDirectory()
folder = scratch.name
export_from_model(GPT2LMHeadModel(config).eval(), output=folder, task="text-generation-with-past", stateful=True)


def pipeline(properties: dict = F32, **limits: object) -> genai.ContinuousBatchingPipeline:
    scheduler = genai.SchedulerConfig()
    for name, limit in limits.items():
        setattr(scheduler, name, limit)
    return genai.ContinuousBatchingPipeline(folder, scheduler, "CPU", properties)


def asking(cap: int, eos: int | None = None, **more: object) -> genai.GenerationConfig:
    settings = genai.GenerationConfig(max_new_tokens=cap, ignore_eos=eos is None, eos_token_id=eos or 0)
    for name, value in more.items():
        setattr(settings, name, value)
    return settings


def drawn(seed: int, *shape: int) -> list:
    return np.random.RandomState(seed).randint(1, 256, shape).tolist()


def ids(prompt: Sequence[int]) -> ov.Tensor:
    return ov.Tensor(np.array([prompt], dtype=np.int64))


def finish(pipe: genai.ContinuousBatchingPipeline, *handles: object) -> list[list[int]]:
    """Returns the answers of these requests."""
    while pipe.has_non_finished_requests():
        pipe.step()
    return [handle.read_all()[0].generated_ids for handle in handles]
