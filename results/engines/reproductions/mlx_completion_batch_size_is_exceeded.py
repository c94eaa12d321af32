"""MLX-LM 0.32.2: more sequences are decoded at once than completion_batch_size."""

from mlx_lm.generate import BatchGenerator
from setup_mlx import HEADS, SHAPE, tiny

model = tiny("llama", **SHAPE, **HEADS, rms_norm_eps=1e-5, tie_word_embeddings=False)
LIMIT = 4
generator = BatchGenerator(model, completion_batch_size=LIMIT, prefill_batch_size=LIMIT, prefill_step_size=2)
lengths = [1, 1, 12, 12, 10, 10]
generator.insert([[token + 1] * num for token, num in enumerate(lengths)], [40] * len(lengths))
most = 0
while responses := generator.next_generated():
    most = max(most, len(responses))
print(f"completion_batch_size {LIMIT}: {most} sequences were decoded in one step")
raise SystemExit(most > LIMIT)
