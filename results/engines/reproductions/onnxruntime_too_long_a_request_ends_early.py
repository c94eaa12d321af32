"""onnxruntime-genai 0.18.0: a request longer than the context is not refused, and ends before its
cap."""

import onnxruntime_genai as og
from setup_greedy import greedy
from setup_onnxruntime import begun, built_from, tiny

model = tiny()
engine = og.Engine(og.Model(built_from(model)))
print("context_length is 64")
is_wrong = False
for num in (4, 10):
    try:
        request = begun(engine, [7] * 60, num)
    except (RuntimeError, ValueError) as error:
        print(f"60 tokens and {num} more: refused, {error}")
        continue
    events = []
    while engine.has_pending_requests():
        events += engine.run(engine.create_event_buffer(16))
    tokens, reason = [event.token for event in events], events[-1].finish_reason.name
    right = greedy(model, [7] * 60, num) if num == 4 else "refused"
    print(f"60 tokens and {num} more: {tokens}, {reason}; should be {right}")
    is_wrong |= len(tokens) < num
raise SystemExit(is_wrong)
