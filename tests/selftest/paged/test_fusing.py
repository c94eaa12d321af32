"""Which modules one operator stands for, and that a trace uses it."""

import pytest
import torch
from torch import nn
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from batchproof.api import EngineConfig
from batchproof.models.catalogue import load_model
from batchproof_paged import paged
from batchproof_paged.torchscript import fusible

CPU = torch.device("cpu")


class ShiftedRMSNorm(LlamaRMSNorm):  # type: ignore[misc]
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        shifted: torch.Tensor = super().forward(rows) + 1e-3
        return shifted


class GatedRMSNorm(LlamaRMSNorm):  # type: ignore[misc]
    def forward(self, rows: torch.Tensor, gate: torch.Tensor | None = None) -> torch.Tensor:
        normed: torch.Tensor = super().forward(rows)
        return normed if gate is None else normed * gate


NORMS = {
    "plain": (LlamaRMSNorm(8), True),
    "scaled by one more than its weight": (Gemma3RMSNorm(8), False),
    "shifted": (ShiftedRMSNorm(8), False),
    "gated": (GatedRMSNorm(8), False),
    "of another dtype": (LlamaRMSNorm(8).bfloat16(), False),
}


@pytest.mark.parametrize(("norm", "is_fused"), NORMS.values(), ids=NORMS)
def test_a_norm_is_fused_that_computes_the_same(norm: nn.Module, is_fused: bool) -> None:
    holder = nn.Sequential(norm)
    holder.dtype = torch.float32
    assert [module for module, _ in fusible(holder)] == ([norm] if is_fused else [])


@pytest.mark.parametrize(
    ("name", "operator"), [("gpt2-random", "aten::gelu"), ("llama-random", "aten::rms_norm")]
)
def test_a_trace_calls_one_operator_and_the_model_keeps_its_own(name: str, operator: str) -> None:
    model = load_model(name, CPU, torch.float32).model
    own = [each for each in model.modules() if "forward" in vars(each)]
    trace = paged(model, EngineConfig())._runner._pass._trace._trace(())
    kinds = {node.kind() for node in trace.inlined_graph.nodes()}
    assert operator in kinds
    assert not kinds & {"aten::tanh", "aten::rsqrt"}
    assert [each for each in model.modules() if "forward" in vars(each)] == own
    model = load_model(name, CPU, torch.bfloat16).model
    assert not fusible(model)
