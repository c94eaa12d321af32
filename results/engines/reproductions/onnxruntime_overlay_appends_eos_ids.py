"""onnxruntime-genai 0.18.0: Config.overlay appends a list of EOS ids instead of replacing them."""

import json
from pathlib import Path

import onnxruntime_genai as og
from setup_greedy import greedy
from setup_onnxruntime import begun, built_from, tiny

model = tiny()
built, right = built_from(model), greedy(model, [1, 2, 3], 8)
path = Path(built, "genai_config.json")
content = json.loads(path.read_text())
content["model"]["eos_token_id"] = right[4]
path.write_text(json.dumps(content))
print("without an EOS:", right, "- genai_config.json has the EOS", right[4])
is_wrong = False
for eos, num in ((right[6], 6), ([right[2]], 2), ([right[6]], 6), ([], 8)):
    settings = og.Config(built)
    settings.overlay(json.dumps({"model": {"eos_token_id": eos}}))
    engine = og.Engine(og.Model(settings))
    request = begun(engine, [1, 2, 3], 8)
    events = []
    while engine.has_pending_requests():
        events += [event.token for event in engine.run(engine.create_event_buffer(16))]
    tokens = [token for token in events if token is not None]  # the EOS itself is none
    print(f"overlay {eos}: {tokens}, should be {right[:num]}")
    is_wrong |= tokens != right[:num]
raise SystemExit(is_wrong)
