"""openvino-genai 2026.4.1: a request_id given twice is taken, and every later step fails."""

from setup_openvino import asking, ids, pipeline

STEPS = 6
pipe = pipeline(num_kv_blocks=40)
first = pipe.add_request(0, ids([1, 2, 3]), asking(3))
try:
    second = pipe.add_request(0, ids([1, 2, 3]), asking(3))  # a handle that is dropped cancels
except (RuntimeError, ValueError) as error:
    print("the second of that id is refused, as it should be:", error)
innocent = pipe.add_request(1, ids([1, 2, 3]), asking(3))
for step in range(STEPS):
    try:
        if pipe.has_non_finished_requests():
            pipe.step()
    except RuntimeError as error:
        print(f"step {step} raised: {str(error).strip().splitlines()[-1]}")
found = innocent.get_status().name
print(f"after {STEPS} steps the innocent one is {found}, should be FINISHED")
raise SystemExit(found != "FINISHED")
