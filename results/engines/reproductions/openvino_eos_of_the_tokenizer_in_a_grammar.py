"""openvino-genai 2026.4.1: the tokenizer's EOS is answered within a text, against the grammar."""

import openvino_genai as genai
from setup_openvino import asking, finish, folder, ids, pipeline
from setup_openvino_tokenizer import add_tokenizer

add_tokenizer(folder)  # "a" is 0, "aa" is 1, and the EOS "?" is 2
pipe = pipeline(num_kv_blocks=40)


def answer(stops: set[int]) -> list[int]:
    settings = asking(6, eos=min(stops))
    settings.stop_token_ids = stops
    settings.structured_output_config = genai.StructuredOutputConfig(regex="a{3}")
    handle = pipe.add_request(len(stops), ids([5, 6]), settings)
    return finish(pipe, handle)[0]


right, got = answer({2, 9}), answer({9})
print(f"a{{3}} with the stop tokens 2 and 9: {right}")
print(f"a{{3}} with the stop token 9: {got}, should be a text of three a and 9")
raise SystemExit(2 in got)
