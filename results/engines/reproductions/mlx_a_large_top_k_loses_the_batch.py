"""MLX-LM 0.32.2: a top_k of the whole vocabulary loses every request that starts beside it."""

from mlx_lm.generate import BatchGenerator
from mlx_lm.sample_utils import make_sampler
from setup_mlx import HEADS, SHAPE, VOCAB_SIZE, answers, tiny

model = tiny("llama", **SHAPE, **HEADS, rms_norm_eps=1e-5, tie_word_embeddings=False)
good = [1, 2, 3]
generator = BatchGenerator(model)
samplers = [None, make_sampler(1.0, top_k=VOCAB_SIZE)]
numbers = generator.insert([list(good), [4, 5, 6]], [6, 6], samplers=samplers)
told = []
try:
    told += generator.next_generated()
except ValueError as error:
    print(f"the step raises: {error}")
generator.remove(numbers[1:])
while responses := generator.next_generated():
    told += responses
tokens = [each.token for each in told if each.uid == numbers[0]]
print(f"its neighbour is answered with {tokens}, alone with {answers(model, [good])[0]}")
raise SystemExit(tokens != answers(model, [good])[0])
