"""openvino-genai 2026.4.1: draft tokens that do not fit into a step are never checked, and are
answered.

The model is its own draft, so that every proposal is right.
"""

import openvino_genai as genai
from setup_openvino import F32, asking, drawn, finish, folder, ids, pipeline
from setup_openvino_tokenizer import add_tokenizer

CASES = {  # prompts, their length, max_num_batched_tokens, num_kv_blocks; 256 and 0 are the defaults
    "room for all": (3, 30, 256, 0),
    "long prompts": (3, 200, 256, 0),
    "many requests": (60, 3, 256, 0),
    "small budget": (8, 3, 8, 0),
    "small pool": (3, 30, 256, 4),
}


def answers(case: str, drafted: bool) -> list[list[int]]:
    count, length, budget, blocks = CASES[case]
    draft = {"draft_model": genai.draft_model(folder, "CPU", **F32)} if drafted else {}
    pipe = pipeline(F32 | draft, max_num_batched_tokens=budget, num_kv_blocks=blocks)
    settings = asking(12, **{"num_assistant_tokens": 6} if drafted else {})
    handles = [pipe.add_request(i, ids(prompt), settings) for i, prompt in enumerate(drawn(0, count, length))]
    return finish(pipe, *handles)


add_tokenizer(folder)
wrong = False
for case in CASES:
    right, got = answers(case, drafted=False), answers(case, drafted=True)
    bad = [pair for pair in zip(got, right, strict=True) if pair[0] != pair[1]]
    print(f"{case}: {len(bad)} of {len(got)} answers are wrong")
    for each, should_be in bad[:1]:
        print(f"    {each}\n    should be\n    {should_be}")
    wrong |= bool(bad)
raise SystemExit(wrong)
