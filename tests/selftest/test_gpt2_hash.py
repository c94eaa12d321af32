"""`gpt2-hash` is what its docstrings say, and agrees with its integer oracle."""

import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from batchproof.models.gpt2_hash import build_gpt2_hash
from batchproof.models.gpt2_hash_oracle import generate

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
GOLDEN_PROMPT = (1, 2, 3, 4, 5)
GOLDEN_TOKENS = [
    248, 131, 104, 210, 218, 221, 97, 255, 40, 242, 196, 173,
    255, 139, 87, 182, 47, 70, 133, 180, 201, 176, 213, 7,
]  # fmt: skip


@cache
def model(dtype: torch.dtype = torch.float32, attention: str = "sdpa") -> Any:
    built = cast(Any, build_gpt2_hash()).to(dtype)
    built.set_attn_implementation(attention)
    return built


def prompts(lens: Sequence[int], seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 256, (n,), generator=generator).tolist() for n in lens]


@cache
def cases() -> tuple[tuple[list[int], list[int]], ...]:
    """Prompts of many lengths, the block sizes' neighbours among them, with oracle answers."""
    lens = (1, 2, 3, 5, 8, 15, 16, 17, 33, 65, 129, 244)
    return tuple((prompt, generate(prompt, 6)) for prompt in prompts(lens))


@torch.inference_mode()
def logits(
    token_ids: list[int],
    visible: Tensor | None = None,
    position_ids: list[int] | None = None,
    dtype: torch.dtype = torch.float32,
    attention: str = "sdpa",
) -> Tensor:
    """Return (len, vocab); `visible` is a bool mask (queries, keys)."""
    mask = None
    if visible is not None:
        hidden = torch.zeros(visible.shape, dtype=dtype)
        mask = hidden.masked_fill(~visible, torch.finfo(dtype).min)[None, None]
    positions = None if position_ids is None else torch.tensor([position_ids])
    output = model(dtype, attention)(
        input_ids=torch.tensor([token_ids]), attention_mask=mask, position_ids=positions
    )
    return cast(Tensor, output.logits[0])


def margins(rows: Tensor) -> Tensor:
    best = rows.topk(2, dim=-1).values
    return best[..., 0] - best[..., 1]


def causal(num_tokens: int) -> Tensor:
    return torch.ones(num_tokens, num_tokens, dtype=torch.bool).tril()


@cache
def rounding_error() -> float:
    """Worst float32 logit error against float64 of the same weights, over all case positions."""
    return max(
        (logits(p).double() - logits(p, dtype=torch.float64)).abs().max().item() for p, _ in cases()
    )


@torch.inference_mode()
def padded_decode(batch: list[list[int]], num_steps: int, dtype: torch.dtype) -> list[list[int]]:
    """Greedy tokens of a left-padded batch with a KV cache."""
    width = max(map(len, batch))
    tokens = torch.tensor([[7] * (width - len(p)) + p for p in batch])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in batch])
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    past, columns = None, []
    for _ in range(num_steps):
        output = model(dtype)(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=past,
            use_cache=True,
        )
        past = output.past_key_values
        tokens = output.logits[:, -1].argmax(-1, keepdim=True)
        columns.append(tokens)
        positions = positions[:, -1:] + 1
        mask = torch.cat((mask, torch.ones_like(tokens)), dim=1)
    return torch.cat(columns, dim=1).tolist()


@pytest.mark.parametrize(
    ("dtype", "attention"),
    [*((dtype, "sdpa") for dtype in DTYPES), (torch.float32, "eager"), (torch.bfloat16, "eager")],
    ids=str,
)
def test_every_step_agrees_with_the_integer_oracle(dtype: torch.dtype, attention: str) -> None:
    for prompt, answer in cases():
        rows = logits(prompt + answer[:-1], dtype=dtype, attention=attention)[len(prompt) - 1 :]
        assert rows.argmax(-1).tolist() == answer, f"prompt of {len(prompt)} tokens"
        assert margins(rows).min() >= 2.5, "rounding eats more of the margin than 16 bit should"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_left_padded_batch_with_cache_agrees_with_the_integer_oracle(dtype: torch.dtype) -> None:
    longest = 244 if dtype is torch.float32 else 33  # 16 bit is slow on a CPU.
    batch, answers = zip(*(case for case in cases() if len(case[0]) <= longest), strict=True)
    assert padded_decode(list(batch), 6, dtype) == list(answers)


def test_golden_tokens_are_the_same_on_every_platform() -> None:
    assert generate(GOLDEN_PROMPT, 24) == GOLDEN_TOKENS
    assert padded_decode([list(GOLDEN_PROMPT)], 24, torch.float32) == [GOLDEN_TOKENS]


@torch.inference_mode()
def test_the_margin_is_at_least_what_the_docstring_promises() -> None:
    """Short contexts have the smallest margins: averages over few keys are large."""
    every_token = torch.arange(256)[:, None]
    pairs = torch.randint(0, 256, (1000, 3), generator=torch.Generator().manual_seed(1))
    for batch in (every_token, pairs, torch.tensor(prompts([256] * 2))):
        assert margins(model()(batch).logits).min() >= 2.8


def test_changing_any_earlier_token_changes_what_follows() -> None:
    """One next token agrees by chance in 1 of 256 cases; three in a row practically never."""
    num_changes = num_chance = 0
    for prompt in prompts((1, 2, 3, 7, 20, 128), seed=2):
        answer = generate(prompt, 3)
        for position in range(0, len(prompt), 1 + len(prompt) // 12):
            changed = prompt.copy()
            changed[position] ^= 1 + (position * 37) % 255
            followed = generate(changed, 3)
            assert followed != answer, f"position {position} of {len(prompt)}"
            num_changes += 1
            num_chance += followed[0] == answer[0]
    assert num_changes > 30
    assert num_chance <= 3


def test_shifting_positions_changes_the_next_token() -> None:
    lens = (1, 2, 3, 5, 9, 16, 17, 30, 48, 64, 90, 120)
    num_equal = 0
    for prompt in prompts(lens, seed=3):
        positions = list(range(len(prompt)))
        right = generate(prompt, 1)[0]
        for wrong in ([*positions[:-1], len(prompt)], [p + 1 for p in positions]):
            num_equal += logits(prompt, position_ids=wrong)[-1].argmax().item() == right
    assert num_equal <= 2, "chance allows about 24 / 256"


def test_a_causal_mask_off_by_one_changes_the_next_token() -> None:
    num_equal = 0
    for prompt in prompts((4, 9, 17, 33, 64, 100), seed=4):
        right = generate(prompt[:-1], 1)[0]
        ahead = torch.ones(len(prompt), len(prompt), dtype=torch.bool).tril(1)
        behind = causal(len(prompt)).tril(-1)
        behind[0, 0] = True
        for visible in (ahead, behind):
            num_equal += logits(prompt, visible)[-2].argmax().item() == right
    assert num_equal <= 1, "chance allows about 12 / 256"


def test_a_dropped_key_moves_the_logits_far_more_than_rounding() -> None:
    """Seen by the last query only: the least there is."""
    for prompt in prompts((2, 3, 8, 33, 64), seed=5):
        right = logits(prompt)[-1]
        for key in range(0, len(prompt) - 1, 1 + len(prompt) // 8):
            visible = causal(len(prompt))
            visible[-1, key] = False
            moved = (logits(prompt, visible)[-1] - right).abs().max().item()
            assert moved > 100 * rounding_error(), f"key {key} of {len(prompt)}"


def test_a_foreign_key_moves_the_logits_far_more_than_rounding() -> None:
    for neighbour, prompt in zip(prompts((3, 9, 40), 6), prompts((40, 9, 3), 7), strict=True):
        packed = neighbour + prompt
        positions = [*range(len(neighbour)), *range(len(prompt))]
        own = causal(len(packed))
        own[len(neighbour) :, : len(neighbour)] = False
        right = logits(packed, own, positions)[-1]
        assert right.argmax().item() == generate(prompt, 1)[0]
        for key in range(0, len(neighbour), 3):
            leaky = own.clone()
            leaky[-1, key] = True
            moved = (logits(packed, leaky, positions)[-1] - right).abs().max().item()
            assert moved > 100 * rounding_error(), f"key {key} of {len(neighbour)}"


def test_greedy_runs_are_diverse() -> None:
    assert len(set(generate([0], 64))) >= 45


def test_building_leaves_the_global_generator_alone_and_gives_a_complete_model() -> None:
    before = torch.get_rng_state()
    built = build_gpt2_hash()
    assert torch.equal(torch.get_rng_state(), before)
    assert not built.training
    assert built.generation_config.eos_token_id is None
    assert {built.config.bos_token_id, built.config.eos_token_id, built.config.pad_token_id} == {None}
    for name, tensor in (*built.named_parameters(), *built.named_buffers()):
        assert tensor.device.type == "cpu", name
        assert tensor.dtype == torch.float32, name
        assert not tensor.requires_grad, name


def test_the_oracle_imports_no_torch() -> None:
    script = (
        "import sys, batchproof.models.gpt2_hash_oracle;"
        "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules)"
    )
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", script], cwd=root, check=True)


@pytest.mark.parametrize("context", [[], [0] * 257, [256], [-1]])
def test_the_oracle_refuses_what_the_model_cannot_read(context: list[int]) -> None:
    with pytest.raises(ValueError, match="must be"):
        generate(context, 1)[0]
