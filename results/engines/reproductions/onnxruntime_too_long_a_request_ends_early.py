"""onnxruntime-genai 0.18.0: a request longer than the context is not refused, and ends before its cap.

Exit status 1: reproduced. Prompt and max_generated_tokens are not checked against the context together
when the turn begins. The request ends at the context's end, with the finish reason MAX_SESSION_TOKENS.
"""

import subprocess
import sys
import tempfile

import numpy as np
import onnxruntime_genai as og
import torch
import transformers

torch.manual_seed(0)
config = transformers.LlamaConfig(
    vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64, bos_token_id=0, eos_token_id=0, initializer_range=0.2,
)
model = transformers.LlamaForCausalLM(config).eval()
scratch = tempfile.TemporaryDirectory()
given, built = f"{scratch.name}/given", f"{scratch.name}/built"
model.save_pretrained(given)
words = dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), "t")
transformers.GPT2Tokenizer(vocab={"t": 0}, merges=[], **words).save_pretrained(given)
builder = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-p", "fp32", "-e", "cpu"]
subprocess.run([*builder, "-i", given, "-o", built, "-c", given], capture_output=True, check=True)


def greedy(prompt: list[int], num: int) -> list[int]:
    ids = model.generate(torch.tensor([prompt]), max_new_tokens=num, do_sample=False)
    return ids[0, len(prompt) :].tolist()


def begun(engine: og.Engine, prompt: list[int], num: int) -> og.Request:
    request = engine.create_request()
    options = og.TurnOptions(request)
    options.set_max_generated_tokens(num)
    request.begin_turn(np.array(prompt, dtype=np.int32), options)
    return request


engine = og.Engine(og.Model(built))
print("context_length is 64")
is_wrong = False
for num in (4, 10):
    try:
        request = begun(engine, [7] * 60, num)
    except (RuntimeError, ValueError) as error:
        print(f"60 tokens and {num} more: refused, {error}")
        continue
    events = []
    while engine.has_pending_requests():
        events += engine.run(engine.create_event_buffer(16))
    tokens, reason = [event.token for event in events], events[-1].finish_reason.name
    right = greedy([7] * 60, num) if num == 4 else "refused"
    print(f"60 tokens and {num} more: {tokens}, {reason}; should be {right}")
    is_wrong |= len(tokens) < num
sys.exit(is_wrong)
