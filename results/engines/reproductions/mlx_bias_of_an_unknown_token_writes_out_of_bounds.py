"""MLX-LM 0.32.2: the logit_bias of an unknown token is written behind the logits.

`make_logits_processors` scatters the biases by id, and nothing compares an id with the vocabulary: a
negative one biases another token, and a far one ends the process. Exit status 1: reproduced.
"""

import subprocess
import sys

import mlx.core as mx
from mlx_lm.sample_utils import make_logits_processors

VOCAB_SIZE = 64
if "far" in sys.argv:
    mx.eval(make_logits_processors({10**9: 5.0})[0](None, mx.zeros((1, VOCAB_SIZE))))
    sys.exit(0)
is_wrong = False
for token in (VOCAB_SIZE, -1):
    try:
        after = make_logits_processors({token: 5.0})[0](None, mx.zeros((1, VOCAB_SIZE)))
        moved = {i: each for i, each in enumerate(after[0].tolist()) if each}
        print(f"a bias of token {token} is taken; of {VOCAB_SIZE} logits it moves {moved or 'none'}")
        is_wrong = True
    except (ValueError, IndexError) as error:
        print(f"a bias of token {token} is refused: {error}")
child = subprocess.run([sys.executable, __file__, "far"], capture_output=True, check=False)
print(f"a bias of token 10**9 ends its process with {child.returncode}, but should be refused")
sys.exit(is_wrong or child.returncode != 0)
