"""onnxruntime-genai 0.18.0: an unknown token id ends the Engine for all; -1 is answered."""

import onnxruntime_genai as og
from setup_greedy import greedy
from setup_onnxruntime import answered, built_from, tiny

NUM = 4
model = tiny()
engine = og.Engine(og.Model(built_from(model)))
good, right = [1, 2, 3], greedy(model, [1, 2, 3], NUM)
(below,) = answered(engine, NUM, [1, -1])
print("[1, -1]:", below, "as [1, 255] has", greedy(model, [1, 255], NUM), "- should be refused")
print("good beside [1, 256]:", answered(engine, NUM, good, [1, 256]))
(after,) = answered(engine, NUM, good)
print(f"good, afterwards: {after!r}, should be {right}")
raise SystemExit(after != right or isinstance(below, list))
