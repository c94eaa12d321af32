"""openvino-genai 2026.4.1: a stop token beyond the vocabulary is written behind the logits."""

import openvino_genai as genai
from setup_openvino import asking, finish, ids, pipeline

VOCAB_SIZE = 256


def beside(settings: genai.GenerationConfig) -> list[int]:
    """Returns the answer to a prompt behind a request with these settings."""
    pipe, prompt = pipeline(), ids([11, 12, 13, 14])
    handles = [pipe.add_request(number, prompt, each) for number, each in enumerate((settings, asking(3)))]
    return finish(pipe, *handles)[1]


def stopped(token: int) -> genai.GenerationConfig:
    settings = genai.GenerationConfig(max_new_tokens=3, min_new_tokens=1)
    settings.stop_token_ids, settings.eos_token_id = {token}, token
    return settings


right = beside(asking(3))
beyond = VOCAB_SIZE + right[0]
got = beside(stopped(beyond))
print(f"beside a request with stop token {beyond} of {VOCAB_SIZE}: {got}, should be {right}", flush=True)
raise SystemExit(got != right)
