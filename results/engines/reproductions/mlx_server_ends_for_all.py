"""MLX-LM 0.32.2: one request ends mlx_lm.server for everybody, in four ways."""

from contextlib import suppress
from subprocess import TimeoutExpired

from setup_mlx_server import VOCAB_SIZE, asked, served

num_dead = 0
drawn = {"temperature": 1.0, "top_k": VOCAB_SIZE}
for what in (
    "empty prompt",
    "prompt with its whole answer",
    "top_k of the whole vocabulary",
    "bias of an unknown token",
):
    with served() as server:
        before = asked("t1 t2 t3")
        prompt = {"e": "", "p": f"t1 t2 t3 {before}"}.get(what[0], "t4 t5")
        more = {"t": drawn, "b": {"logit_bias": {"1000000000": 5.0}}}.get(what[0], {})
        bad = asked(prompt, **more)
        with suppress(TimeoutExpired):
            server.wait(2)  # a process that ends takes a moment
        after = asked("t1 t2 t3 t4") if server.poll() is None else f"the process has ended with {server.poll()}"
    print(f"before: {before}\n{what}: {bad}\nafter: {after}")
    num_dead += after.startswith(("HTTP", "no answer", "the process"))
raise SystemExit(num_dead > 0)
