"""CTranslate2 4.8.5: without an unknown token, an unknown word reads behind the embeddings.

That nothing is checked is seen in a second process, where forward_batch gets an id far outside.
"""

import subprocess
import sys

import transformers
from setup_ctranslate2 import converted, tiny

NUM_WORDS = 256
generator = converted(tiny(transformers.LlamaConfig, intermediate_size=128), unk_token=None)
if "far" in sys.argv:
    generator.forward_batch([[1, 10**9]])
    raise SystemExit(0)

is_wrong = False
words = ["t1", "nonsense", "t2"]
try:
    (ids,) = generator.generate_batch([words], max_length=8, end_token=[])[0].sequences_ids
except ValueError as error:
    print(f"{words} is refused: {error}")
else:
    is_wrong = max(ids) >= NUM_WORDS
    print(f"{words} is answered with {ids}, but should be refused: there are {NUM_WORDS} words")
child = subprocess.run([sys.executable, __file__, "far"], stderr=subprocess.DEVNULL, check=False)
print(f"forward_batch with the id 10**9 ends its process with {child.returncode}, but should raise")
raise SystemExit(is_wrong)
