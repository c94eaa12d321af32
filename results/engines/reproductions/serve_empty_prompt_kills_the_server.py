"""transformers serve 5.23.0: an empty prompt alone ends the server for all."""

from setup_serve import asked, served

with served():
    print("before:", asked("t1 t2 t3"))
    print("empty prompt:", asked(""))
    after = asked("t1 t2 t3")
    print("after:", after)
raise SystemExit(after.startswith("HTTP"))
