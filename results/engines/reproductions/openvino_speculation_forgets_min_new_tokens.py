"""openvino-genai 2026.4.1: with speculation, answers end before min_new_tokens."""

from setup_openvino import F32, asking, drawn, finish, ids, pipeline

MINIMUM = 9


def answer(prompt: list[int], lookup: bool, eos: int | None = None) -> list[int]:
    pipe = pipeline(F32 | ({"prompt_lookup": True} if lookup else {}))
    more = {} if eos is None else {"min_new_tokens": MINIMUM}
    more |= {"num_assistant_tokens": 4, "max_ngram_size": 2} if lookup else {}
    handle = pipe.add_request(0, ids(prompt), asking(16, eos, **more))
    return finish(pipe, handle)[0]


wrong = False
for seed in range(8):
    prompt = drawn(seed, 20)
    eos = answer(prompt, lookup=False)[2]
    got, right = answer(prompt, lookup=True, eos=eos), answer(prompt, lookup=False, eos=eos)
    if got != right:
        print(f"prompt {seed}, EOS {eos}: {len(got)} tokens of at least {MINIMUM}: {got}, should be {right}")
    wrong |= got != right
raise SystemExit(wrong)
