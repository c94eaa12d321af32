"""MLX-LM 0.32.2: token ids outside of the vocabulary, and requests beyond the positions, are
answered."""

import subprocess
import sys

from setup_mlx import HEADS, SHAPE, VOCAB_SIZE, answers, tiny

model = tiny("llama", **SHAPE, **HEADS, rms_norm_eps=1e-5, tie_word_embeddings=False)
if "far" in sys.argv:
    print(answers(model, [[1, 10**9, 3]]))
    raise SystemExit(0)
is_wrong = False
for token in (VOCAB_SIZE, VOCAB_SIZE + 10, -1):
    try:
        print(f"[1, {token}, 3] of {VOCAB_SIZE} tokens is answered: {answers(model, [[1, token, 3]])[0]}")
        is_wrong = True
    except (ValueError, IndexError) as error:
        print(f"[1, {token}, 3] is refused: {error}")
child = subprocess.run([sys.executable, __file__, "far"], capture_output=True, check=False)
print(f"10**9: the process ends with {child.returncode} and says {child.stdout.decode().strip() or 'nothing'}")
num = len(answers(model, [[1] * 250], max_tokens=40)[0])
print(f"250 prompt tokens and max_tokens 40, with {HEADS['max_position_embeddings']} positions: answered with {num} tokens")
raise SystemExit(is_wrong)
