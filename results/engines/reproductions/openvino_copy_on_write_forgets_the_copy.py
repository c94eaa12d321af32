"""openvino-genai 2026.4.1: prefix caching without dynamic_split_fuse does not copy a shared block."""

import sys

from setup_openvino import asking, drawn, finish, ids, pipeline

PROMPT = drawn(0, 32)  # one block


def answers(prefix_caching: bool) -> list[list[int]]:
    """Of the same prompt twice; the second comes when the first's is computed."""
    pipe = pipeline(num_kv_blocks=20, dynamic_split_fuse=False, enable_prefix_caching=prefix_caching)
    first = pipe.add_request(0, ids(PROMPT), asking(6))
    pipe.step()
    second = pipe.add_request(1, ids(PROMPT), asking(6))
    finish(pipe)
    return [handle.read_all()[0].generated_ids for handle in (first, second)]


got, right = answers(True), answers(False)
print(f"the same prompt twice: got {got[0]} and {got[1]}, should be {right[0]} and {right[1]}")
sys.exit(got != right)
