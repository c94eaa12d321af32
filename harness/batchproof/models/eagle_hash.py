"""`eagle-hash`: a Llama whose next token a draft head can compute from its last hidden state.

It is built as `llama-hash` is (`llama_hash.py`), with a hash that rolls: layer l adds the state of 2^l
positions earlier, moved down by 2^l bits. As (1 + z)(1 + z^2)(1 + z^4)... is the sum of all powers of
z, the last state is the sum of the codes of the last 31 tokens, each moved by its distance. So the next
state is this one moved by one bit, XOR the code of the next token (`eagle_hash_oracle.py`).

The head has EAGLE's form (Li et al., "EAGLE: Speculative Sampling Requires Rethinking Feature
Uncertainty", 2024): a matrix takes the embedding of the token at t + 1 and the hidden state at t,
behind the last norm, to the width of one; decoder layers follow, the first without a norm before its
attention; the model's own output head ends it. Here the matrix moves the state, and leaves the code in
the soft channels. Attention copies the code of the position itself, so that it goes through the head's
cache; the MLP XORs both, and the result is the hidden state of a chain's next draft. The second layer
gives the head its share of wrong proposals: it takes chosen tokens to others.
"""

import math
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel

from batchproof.decoding.speculation import disagreeing_tokens, proposed_instead, register_head
from batchproof.models.constructed import NO_SPECIAL_TOKENS, ROPE_THETA, signs, token_signs, zeroed
from batchproof.models.eagle_hash_oracle import OFFSETS, gate_inputs, mixed_code, token_code
from batchproof.models.hash_tables import TOKEN_BITS, VOCAB_SIZE
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

_ANSWER = slice(STATE.stop - TOKEN_BITS, STATE.stop)


def build_eagle_hash() -> LlamaForCausalLM:
    model: LlamaForCausalLM = build(token_code, OFFSETS, gate_inputs)
    register_head(model, EagleHead)
    return model


class EagleHead(LlamaModel):  # type: ignore[misc]
    """The head that proposes what the model chooses for a share `agreement` of the tokens."""

    def __init__(self, agreement: float) -> None:
        config = LlamaConfig(**SIZES, **NO_SPECIAL_TOKENS, num_hidden_layers=2, rope_theta=ROPE_THETA)
        with torch.device("cpu"), torch.random.fork_rng(devices=[]):
            super().__init__(config)
            self.fc = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.norm = self.layers[0].input_layernorm = nn.Identity()
        zeroed(self)
        self._fill_first()
        self._fill_second(agreement)

    def chained(self, token_ids: Tensor, hidden: Tensor) -> Tensor:
        """Returns the head's hidden states (1, n, WIDTH) for the tokens (1, n) that follow the hidden
        states (1, n, WIDTH)."""
        both = torch.cat((self.embed_tokens(token_ids), hidden), -1)
        return self(inputs_embeds=self.fc(both)).last_hidden_state

    def logits_input(self, hidden: Tensor) -> Tensor:
        return hidden

    def save(self, folder: Path) -> None:
        """Writes the head as engines load it: the names of EAGLE's checkpoints, a Llama's config."""
        self.config.architectures = ["LlamaForCausalLM"]
        self.config.dtype = self.dtype
        self.config.save_pretrained(folder)
        save_file(dict(self.state_dict()), folder / "model.safetensors", {"format": "pt"})

    def _fill_first(self) -> None:
        for token_id in range(VOCAB_SIZE):
            self.embed_tokens.weight[token_id, STATE] = signs(mixed_code(token_id))
        self.embed_tokens.weight[:, CONSTANT] = CONSTANT_VALUE
        matrix, bits = self.fc.weight, range(STATE_BITS)
        matrix[[SOFT.start + bit for bit in bits], [*bits]] = 1.0
        matrix[[*bits], [WIDTH + max(bit - 1, 0) for bit in bits]] = 1.0
        matrix[CONSTANT, CONSTANT] = 1.0
        first = self.layers[0]
        copy_own_code(first.self_attn, first.mlp)
        # State, fetched and the code in the soft channels have a square of 1, and the constant of 64.
        mean_square = (3 * STATE_BITS + CONSTANT_VALUE**2) / WIDTH
        first.post_attention_layernorm.weight.fill_(math.sqrt(mean_square))

    def _fill_second(self, agreement: float) -> None:
        """A unit for each token that is taken to another: 1 where all bits are those of the token."""
        second = self.layers[1]
        for norm in (second.input_layernorm, second.post_attention_layernorm):
            norm.weight.fill_(math.sqrt(MEAN_SQUARE_NO_FETCH))
        gate, up, down = second.mlp.gate_proj, second.mlp.up_proj, second.mlp.down_proj
        for unit, token in enumerate(disagreeing_tokens(VOCAB_SIZE, agreement)):
            bits = token_signs(token)
            gate.weight[unit, _ANSWER] = RELU_GAIN * bits
            gate.weight[unit, CONSTANT] = -RELU_GAIN * (TOKEN_BITS - 1) / CONSTANT_VALUE
            up.weight[unit, CONSTANT] = 1 / CONSTANT_VALUE
            instead = token_signs(proposed_instead(token, VOCAB_SIZE, agreement))
            down.weight[_ANSWER, unit] = (instead - bits) / RELU_GAIN
