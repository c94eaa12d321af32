"""mistral.rs 0.9.5: with sliding windows, requests of one length share a batch in which every window lies
where that of the first does: wrong answers, or the end of the engine."""

import sys
import tempfile

from setup_mistralrs import answer, runner, same, save, stream, told

prompts = [[*range(20)], [*range(15)]]
with tempfile.TemporaryDirectory() as folder:
    save(folder, "MistralForCausalLM", sliding_window=8)
    alone = [answer(folder, prompt, 60) for prompt in prompts]
    engine = runner(folder)
    running = stream(engine, prompts[0], 60)
    begun = next(running)
    second = stream(engine, prompts[1], 60)
    joined = [[begun, *running], [*second]]
    for what, tokens, others in zip(("runs", "joins it"), joined, alone, strict=True):
        print(f"the request that {what}: {same(tokens, others)} of 60 tokens as alone")
    together: list[list[int] | str] = []
    while not any(isinstance(each, str) for each in together):
        engine = runner(folder)
        together = [told(each) for each in [stream(engine, prompt, 60) for prompt in prompts]]
    print(f"both arrive at once: {together}")
sys.exit(joined != alone)
