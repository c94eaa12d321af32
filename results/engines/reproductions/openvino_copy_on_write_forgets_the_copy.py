"""openvino-genai 2026.4.1: with prefix caching, a block that requests share is written without a copy."""

import sys

from setup_openvino import asking, drawn, finish, ids, pipeline

PROMPT = drawn(0, 32)  # one block
TURNS = drawn(1, 2, 3)


def same(prefix_caching: bool) -> list[list[int]]:
    """Of the same prompt twice; the second comes when the first's is computed."""
    pipe = pipeline(num_kv_blocks=20, dynamic_split_fuse=False, enable_prefix_caching=prefix_caching)
    first = pipe.add_request(0, ids(PROMPT), asking(6))
    pipe.step()
    second = pipe.add_request(1, ids(PROMPT), asking(6))
    finish(pipe)
    return [handle.read_all()[0].generated_ids for handle in (first, second)]


def branched(prefix_caching: bool) -> list[list[int]]:
    """Of two turns at once that go on from one answer, with dynamic_split_fuse, the default."""
    pipe = pipeline(num_kv_blocks=20, enable_prefix_caching=prefix_caching)
    first = pipe.add_request(0, ids(PROMPT[:20]), asking(6))
    finish(pipe)
    said = PROMPT[:20] + first.read_all()[0].generated_ids
    handles = [pipe.add_request(i, ids(said + turn), asking(6)) for i, turn in enumerate(TURNS, start=1)]
    finish(pipe)
    return [handle.read_all()[0].generated_ids for handle in handles]


wrong = False
for case, answers in (("the same prompt twice", same), ("two turns at once", branched)):
    got, right = answers(True), answers(False)
    print(f"{case}: got {got[0]} and {got[1]}, should be {right[0]} and {right[1]}")
    wrong |= got != right
sys.exit(wrong)
