"""`mtp-hash`: a GLM-4.5 with a layer for multi-token prediction that can compute what it chooses.

It has the rolling hash of `eagle-hash` (`eagle_hash.py`). Its last layer is a mixture of experts, which
engines require of the architecture: the shared expert does the layer's work, and routed ones add 0.

The layer behind the last is that of DeepSeek-V3 (DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024,
2.2): a matrix takes the normed embedding of the token at t + 1 and the normed hidden state at t to the
width of one, and a decoder layer follows. Embedding and output head are the model's, so each embedding
has the code of its token beside it, as the model's first layer makes it: 31 channels `code`, which the
model carries along. As in the EAGLE head the matrix moves the state, and attention copies the code of
the position itself, which the MLP adds. One layer cannot see what it proposes, so the token that it is
*fed* decides whether the proposal is wrong: a unit for each of these tokens is 1 where the code is its
own, times the last bit of the state moved, and turns that bit. Engines feed 0 for the first token of a
sequence, so what is proposed behind a prompt of one token is wrong.
"""

import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import Glm4MoeConfig, Glm4MoeForCausalLM, Glm4MoeModel

from batchproof.decoding.speculation import disagreeing_tokens, register_head
from batchproof.models.constructed import NO_SPECIAL_TOKENS, ROPE_THETA, signs, zeroed
from batchproof.models.eagle_hash_oracle import CODE_BITS, OFFSETS, gate_inputs, mixed_code, token_code
from batchproof.models.hash_tables import VOCAB_SIZE
from batchproof.models.llama_hash import (
    CONSTANT,
    CONSTANT_VALUE,
    MEAN_SQUARE_NO_FETCH,
    RELU_GAIN,
    SIZES,
    SOFT,
    STATE,
    WIDTH,
    build,
    copy_own_code,
)
from batchproof.models.llama_hash_oracle import STATE_BITS

NUM_LAYERS = len(OFFSETS)
_ARCHITECTURE = {
    "n_routed_experts": 2,
    "num_experts_per_tok": 1,
    "n_shared_experts": 1,
    "moe_intermediate_size": 512,
    "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_THETA, "partial_rotary_factor": 1.0},
}
CODE = slice(CONSTANT + 1, CONSTANT + 1 + CODE_BITS)
_CODES = CODE_BITS / WIDTH  # what the channels `code` add to a mean square


def build_mtp_hash() -> Glm4MoeForCausalLM:
    sizes = {"first_k_dense_replace": NUM_LAYERS - 1, "num_nextn_predict_layers": 1, **_ARCHITECTURE}
    model: Glm4MoeForCausalLM = build(token_code, OFFSETS, gate_inputs, Glm4MoeForCausalLM, **sizes)
    for token_id in range(VOCAB_SIZE):
        model.model.embed_tokens.weight[token_id, CODE] = signs(mixed_code(token_id)[1:])
    for name, weight in model.named_parameters():
        if "norm" in name:
            weight.copy_((weight**2 + _CODES) ** 0.5)
    register_head(model, MtpHead)
    return model


class MtpHead(Glm4MoeModel):  # type: ignore[misc]
    """The layer that proposes what the model chooses behind a share `agreement` of the tokens."""

    def __init__(self, agreement: float) -> None:
        sizes: dict[str, Any] = {**SIZES, **NO_SPECIAL_TOKENS, **_ARCHITECTURE}
        config = Glm4MoeConfig(**sizes, num_hidden_layers=1, first_k_dense_replace=0)
        with torch.device("cpu"), torch.random.fork_rng(devices=[]):
            super().__init__(config)
            self.eh_proj = nn.Linear(2 * WIDTH, WIDTH, bias=False)
            self.enorm, self.hnorm, last = (nn.RMSNorm(WIDTH, config.rms_norm_eps) for _ in range(3))
            self.shared_head = nn.ModuleDict({"norm": last})
        self.norm = nn.Identity()
        zeroed(self)
        self.embed_tokens.weight.copy_(build_mtp_hash().model.embed_tokens.weight)  # engines share it
        self._fill(agreement)

    def chained(self, token_ids: Tensor, hidden: Tensor) -> Tensor:
        """Returns the layer's hidden states (1, n, WIDTH) for the tokens (1, n) that follow the hidden
        states (1, n, WIDTH)."""
        both = torch.cat((self.enorm(self.embed_tokens(token_ids)), self.hnorm(hidden)), -1)
        return self(inputs_embeds=self.eh_proj(both)).last_hidden_state

    def logits_input(self, hidden: Tensor) -> Tensor:
        return self.shared_head["norm"](hidden)

    def save(self, folder: Path) -> None:
        """Writes the model with the layer behind its last, as such models are released."""
        build_mtp_hash().to(self.dtype).save_pretrained(folder)
        weights = load_file(folder / "model.safetensors")
        last, place = (f"model.layers.{number}." for number in (NUM_LAYERS - 1, NUM_LAYERS))
        of_last = [name for name in weights if name.startswith(f"{last}mlp.")]  # its experts are 0, too
        weights |= {name.replace(last, place): weights[name].clone() for name in of_last}
        own = [name for name in self.state_dict() if ".mlp.experts." not in name]
        weights |= {place + name.removeprefix("layers.0."): self.state_dict()[name] for name in own}
        weights[f"{place}shared_head.head.weight"] = weights["lm_head.weight"].clone()
        save_file(weights, folder / "model.safetensors", {"format": "pt"})

    def _fill(self, agreement: float) -> None:
        block = self.layers[0]
        mlp = block.mlp.shared_experts
        last = self.shared_head.get_parameter("norm.weight")
        for scale in (self.enorm.weight, self.hnorm.weight, last):
            scale.fill_(math.sqrt(MEAN_SQUARE_NO_FETCH + _CODES))
        self._fill_matrix()
        mean_square = (2 * STATE_BITS + CONSTANT_VALUE**2) / WIDTH + _CODES
        block.input_layernorm.weight.fill_(math.sqrt(mean_square))
        block.post_attention_layernorm.weight.fill_(math.sqrt(mean_square + STATE_BITS / WIDTH))
        first = copy_own_code(block.self_attn, mlp)
        # silu(32 (own bits - 30)) times the last bit of the state is 32 or 0 times it.
        for unit, token in enumerate(disagreeing_tokens(VOCAB_SIZE, agreement), first):
            code = signs(mixed_code(token)[1:])
            mlp.gate_proj.weight[unit, CODE] = RELU_GAIN * code
            mlp.gate_proj.weight[unit, CONSTANT] = -RELU_GAIN * (CODE_BITS - 1) / CONSTANT_VALUE
            mlp.up_proj.weight[unit, STATE.stop - 1] = code[-1]
            mlp.down_proj.weight[STATE.stop - 1, unit] = -2 / RELU_GAIN

    def _fill_matrix(self) -> None:
        """Takes code and constant of the embedding, and the state, moved by a bit, of the other."""
        matrix, bits = self.eh_proj.weight, range(STATE_BITS)
        matrix[[*bits], [WIDTH + max(bit - 1, 0) for bit in bits]] = 1.0
        matrix[SOFT.start, CONSTANT] = 1 / CONSTANT_VALUE
        codes = range(CODE.start, CODE.stop)
        for first in (SOFT.start + 1, CODE.start):
            matrix[[*range(first, first + CODE_BITS)], [*codes]] = 1.0
        matrix[CONSTANT, CONSTANT] = 1.0
