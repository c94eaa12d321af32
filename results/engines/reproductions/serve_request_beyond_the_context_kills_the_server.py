"""transformers serve 5.23.0: one request longer than the model's positions ends the server for all."""

from setup_serve import asked, served

with served():
    print("before:", asked("t1 t2 t3"))
    print("240 tokens and 30 more:", asked("t5 " * 240, max_tokens=30))
    after = asked("t1 t2 t3")
    print("after:", after)
raise SystemExit(after.startswith("HTTP"))
