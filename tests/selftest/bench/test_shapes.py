"""The models of the benchmarks: the right sizes, made in place, and able to show a fault."""

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from batchproof.bench.roofline import ModelCosts
from batchproof.models.catalogue import build_model, load_model
from batchproof.models.shapes import SHAPES

CPU = torch.device("cpu")


def shrunken(name: str, dtype: torch.dtype) -> PreTrainedModel:
    """A shape of two narrow layers and few tokens, built as the large one is."""
    changes: dict[str, Any]
    if name == "gpt2":
        changes = {"n_layer": 2, "n_embd": 48}
    elif name == "tiny-mamba2":
        changes = {"num_hidden_layers": 2}
    else:
        changes = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128}
        if layer_types := SHAPES[name].values.get("layer_types"):
            changes["layer_types"] = layer_types[-2:]
    return build_model(SHAPES[name].config(vocab_size=512, **changes), CPU, dtype)


@pytest.mark.parametrize(
    ("name", "num_parameters", "kv_bytes"),
    [
        ("tiny", 5_048_576, None),
        ("gpt2", 124_439_808, 36_864),
        ("llama-1b", 1_235_814_400, 32_768),
        ("llama-8b", 8_030_261_248, 131_072),
    ],
)
def test_each_shape_has_the_sizes_of_the_model_it_is_named_after(
    name: str, num_parameters: int, kv_bytes: int | None
) -> None:
    model = load_model(name, torch.device("meta"), torch.bfloat16).model
    assert sum(each.numel() for each in model.parameters()) == num_parameters
    costs = ModelCosts.of(model)
    assert costs is not None
    assert kv_bytes in (None, costs.kv_bytes_per_token)


def test_rope_frequencies_are_the_same_in_every_dtype() -> None:
    """`model.to(bfloat16)` rounds them, and then far positions turn by wrong angles."""
    for name in ("tiny", "llama-1b"):
        frequencies = dict(shrunken(name, torch.float32).named_buffers())
        assert any(key.endswith("inv_freq") for key in frequencies)
        for dtype in (torch.bfloat16, torch.float64):
            model = shrunken(name, dtype)
            assert {each.dtype for each in model.parameters()} == {dtype}
            for key, buffer in model.named_buffers():
                assert buffer.dtype == torch.float32, f"{name} {dtype} {key}"
                torch.testing.assert_close(buffer, frequencies[key], rtol=1e-6, atol=0)
