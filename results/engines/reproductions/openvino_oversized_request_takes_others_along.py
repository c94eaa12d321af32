"""openvino-genai 2026.4.1: a request that the pool cannot hold takes all along that wait behind it."""

import numpy as np
from setup_openvino import asking, finish, ids, pipeline


def ends(lengths: list[int]) -> list[str]:
    pipe, random = pipeline(num_kv_blocks=1), np.random.RandomState(0)
    handles = [
        pipe.add_request(number, ids(random.randint(1, 256, length)), asking(3))
        for number, length in enumerate(lengths)
    ]
    finish(pipe)
    return [handle.get_status().name for handle in handles]


got = ends([40, 3, 9])
print(f"prompts of 40, 3 and 9 tokens: {got}; of 3 and 9: {ends([3, 9])}")
raise SystemExit(got[1:] != ["FINISHED", "FINISHED"])
