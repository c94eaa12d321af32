"""CTranslate2 4.8.5: without an unknown token, an unknown word reads behind the embeddings.

Exit status 1: reproduced. The loaders of Llama and Qwen convert a tokenizer without an unknown token to
a model whose unknown token is the empty word. `Vocabulary` in src/vocabulary.cc (read at 4.8.1) appends
that to the words, so an unknown word gets the id vocab_size, and the embeddings are read there without
a look at their number of rows. That nothing is checked is seen in a second process, where forward_batch
gets an id far outside.
"""

import subprocess
import sys
import tempfile

import ctranslate2
import torch
import transformers
from ctranslate2.converters import TransformersConverter

torch.manual_seed(0)
shape = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
config = transformers.LlamaConfig(num_attention_heads=4, initializer_range=0.2, **shape)
model = transformers.AutoModelForCausalLM.from_config(config).eval()
vocabulary = {f"t{i}": i for i in range(256)}
special = dict.fromkeys(("bos_token", "eos_token", "pad_token"), "t0") | {"unk_token": None}
with tempfile.TemporaryDirectory() as folder:
    model.save_pretrained(folder)
    transformers.GPT2Tokenizer(vocab=vocabulary, merges=[], **special).save_pretrained(folder)
    TransformersConverter(folder).convert(f"{folder}/converted")
    generator = ctranslate2.Generator(f"{folder}/converted", compute_type="float32")
if "far" in sys.argv:
    generator.forward_batch([[1, 10**9]])
    sys.exit(0)

is_wrong = False
words = ["t1", "nonsense", "t2"]
try:
    (ids,) = generator.generate_batch([words], max_length=8, end_token=[])[0].sequences_ids
except ValueError as error:
    print(f"{words} is refused: {error}")
else:
    is_wrong = max(ids) >= config.vocab_size
    print(f"{words} is answered with {ids}, but should be refused: there are {config.vocab_size} words")
child = subprocess.run([sys.executable, __file__, "far"], stderr=subprocess.DEVNULL, check=False)
print(f"forward_batch with the id 10**9 ends its process with {child.returncode}, but should raise")
sys.exit(is_wrong)
