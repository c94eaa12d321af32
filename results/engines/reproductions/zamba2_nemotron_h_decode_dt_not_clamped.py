"""transformers: a decode step of Zamba2 and NemotronH forgets `time_step_min`.

Shown in float64: 1e-7 would be the float32 parts. Seen in 5.17.0 and 5.23.0.
"""
import torch
from transformers import NemotronHConfig, NemotronHForCausalLM, Zamba2Config, Zamba2ForCausalLM

kinds = dict(vocab_size=64, hidden_size=32, num_attention_heads=4, initializer_range=0.2, tie_word_embeddings=False)
makers = {
    "zamba2": lambda least: Zamba2ForCausalLM(Zamba2Config(
        **kinds, num_hidden_layers=3, layers_block_type=["linear_attention", "linear_attention", "hybrid"],
        mamba_d_state=8, n_mamba_heads=4, intermediate_size=32, time_step_min=least)),
    "nemotron_h": lambda least: NemotronHForCausalLM(NemotronHConfig(
        **kinds, layers_block_type=["linear_attention", "full_attention"], num_key_value_heads=2, head_dim=8,
        ssm_state_size=8, mamba_num_heads=4, mamba_head_dim=16, n_groups=2, time_step_min=least)),
}
found = 0.0
ids = torch.randint(4, 64, (1, 12), generator=torch.Generator().manual_seed(0))
for name, make in makers.items():
    for least in (1e-9, 0.001, 0.05):
        torch.manual_seed(0)
        model = make(least)
        for part, weight in model.named_parameters():
            if part.endswith("dt_bias"):
                weight.data.fill_(-4.0)
        model = model.double().eval()
        with torch.no_grad():
            whole = model(ids, use_cache=False).logits
            out = model(ids[:, :6], use_cache=True)
            worst = 0.0
            for i in range(6, 12):
                out = model(ids[:, i : i + 1], past_key_values=out.past_key_values, use_cache=True)
                worst = max(worst, (out.logits[:, -1] - whole[:, i]).abs().max().item())
        found = max(found, worst)
        print(f"{name:10} time_step_min {least:<6} one pass and token by token differ by {worst:.2g}"
              f" (logits spread over {whole.max() - whole.min():.2g})")
raise SystemExit(found > 1e-3)
