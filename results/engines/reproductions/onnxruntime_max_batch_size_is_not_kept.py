"""onnxruntime-genai 0.18.0: engine.static_batching.max_batch_size is reported, but not kept."""

import json

import onnxruntime_genai as og
from setup_onnxruntime import begun, built_from, tiny

built = built_from(tiny())
is_wrong = False
for size in (1, 2, 4, 8):
    settings = og.Config(built)
    settings.overlay(json.dumps({"engine": {"static_batching": {"max_batch_size": size}}}))
    engine = og.Engine(og.Model(settings))
    requests = [begun(engine, [1, 2, i], 2) for i in range(8)]
    ran = []
    while engine.has_pending_requests():
        ran.append(len(engine.run(engine.create_event_buffer(16))))
    told = engine.get_capabilities().configured_max_batch_size
    print(f"max_batch_size {size}, reported as {told}: 8 requests, answered by each run {ran}")
    is_wrong |= max(ran) != size
print("no run should answer more requests than max_batch_size, and the first as many")
raise SystemExit(is_wrong)
