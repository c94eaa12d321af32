"""openvino-genai 2026.4.1: a cancel makes the pipeline give up requests that wait for blocks."""

from setup_openvino import asking, drawn, finish, ids, pipeline

pipe = pipeline(num_kv_blocks=2)  # 64 tokens
long = pipe.add_request(0, ids(drawn(0, 40)), asking(20))  # takes both blocks
pipe.step()
waiting = pipe.add_request(1, ids(drawn(1, 5)), asking(3))  # needs one
pipe.step()
print(f"before the cancel: waiting is {waiting.get_status().name}")
long.cancel()
finish(pipe)
found = waiting.get_status().name
print(f"after the cancel: waiting is {found}, should be FINISHED")
later = pipe.add_request(2, ids(drawn(2, 5)), asking(3))
finish(pipe)
print(f"one like it that came later is {later.get_status().name}")
raise SystemExit(found != "FINISHED")
