"""openvino-genai 2026.4.1: with a grammar, an unknown stop token is written behind a mask in memory."""

import os

import openvino_genai as genai
from setup_openvino import asking, finish, folder, ids, pipeline
from setup_openvino_tokenizer import add_tokenizer

add_tokenizer(folder)


def answer(stop: int) -> list[int]:
    pipe = pipeline(num_kv_blocks=40)
    settings = asking(6, eos=2, structured_output_config=genai.StructuredOutputConfig(regex="a{3}"))
    settings.stop_token_ids = {2, stop}
    handle = pipe.add_request(0, ids([5, 6]), settings)
    return finish(pipe, handle)[0]


def ended(stop: int) -> int:
    """The signal that ends a process of its own, which prints its answer; 0: none."""
    child = os.fork()
    if child == 0:
        print(f"stop tokens 2 and {stop} of 256: {answer(stop)}", flush=True)
        os._exit(0)
    return os.waitpid(child, 0)[1] & 0x7F


ended(9)
beyond = ended(2**30)
print(f"stop tokens 2 and {2**30} of 256: the process ended by signal {beyond}")
raise SystemExit(beyond != 0)
