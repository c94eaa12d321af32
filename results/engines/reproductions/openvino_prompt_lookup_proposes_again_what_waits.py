"""openvino-genai 2026.4.1: prompt lookup answers -1, and wrong tokens, where a request waits for a
step."""

from setup_openvino import F32, asking, drawn, finish, ids, pipeline

CASES = {  # requests, max_num_batched_tokens, dynamic_split_fuse; 256 and True are the defaults
    "room for all": (3, 256, True),
    "small budget": (8, 8, True),
    "prompts first": (2, 256, False),
    "many requests": (60, 256, True),
}


def answers(case: str, lookup: bool) -> list[list[int]]:
    """The answers to prompts of 3 tokens; the last one comes after the first step."""
    count, budget, split_fuse = CASES[case]
    properties = F32 | ({"prompt_lookup": True} if lookup else {})
    pipe = pipeline(properties, max_num_batched_tokens=budget, dynamic_split_fuse=split_fuse)
    settings = asking(12, **{"num_assistant_tokens": 6, "max_ngram_size": 3} if lookup else {})
    handles = []
    for i, prompt in enumerate(drawn(0, count, 3)):
        if i == count - 1:
            pipe.step()
        handles.append(pipe.add_request(i, ids(prompt), settings))
    return finish(pipe, *handles)


wrong = False
for case in CASES:
    right = answers(case, lookup=False)
    try:
        bad = [pair for pair in zip(answers(case, lookup=True), right, strict=True) if pair[0] != pair[1]]
        print(f"{case}: {len(bad)} of {len(right)} answers are wrong")
        for got, should_be in bad[:1]:
            print(f"    {got}\n    should be\n    {should_be}")
    except RuntimeError as error:
        bad = [error]
        print(f"{case}: no answer at all: {error}")
    wrong |= bool(bad)
raise SystemExit(wrong)
