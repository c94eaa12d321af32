"""MLX-LM 0.32.2: Gemma 2 takes the batch's mask for one of its heads."""

from setup_mlx import HEADS, SHAPE, answers, tiny

model = tiny("gemma2", **{**SHAPE, **HEADS, "num_hidden_layers": 4}, rms_norm_eps=1e-5, query_pre_attn_scalar=8)
prompts = [[31, 32, 33, 34, 35], [9, 8, 7, 6, 5, 4, 3, 2, 1], [11, 12]]
alone = [answers(model, [prompt])[0] for prompt in prompts]
is_wrong = False
for num in (2, 3):
    try:
        together = answers(model, prompts[:num])
        print(f"{num} prompts, {HEADS['num_key_value_heads']} key heads: {together}, but alone {alone[:num]}")
        is_wrong |= together != alone[:num]
    except ValueError as error:
        print(f"{num} prompts raise: {error}")
        is_wrong = True
raise SystemExit(is_wrong)
