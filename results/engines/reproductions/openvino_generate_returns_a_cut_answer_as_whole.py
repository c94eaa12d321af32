"""openvino-genai 2026.4.1: generate() returns what was made before the cache was full as an answer."""

import openvino_genai as genai
from setup_openvino import asking, ids, pipeline

CAP = 100
pipe = pipeline(num_kv_blocks=2)  # 64 tokens
silent = False
for prompt in ([1, 2, 3], [*range(1, 100)]):
    try:
        (result,) = pipe.generate([ids(prompt)], [asking(CAP)])
    except RuntimeError as error:
        print(f"prompt of {len(prompt)} tokens: raised, as it should:", error)
        continue
    length = sum(map(len, result.m_generation_ids))
    reason = result.finish_reasons[0].name
    status = getattr(result, "m_status", None)
    silent |= length < CAP and status != genai.GenerationStatus.IGNORED
    print(f"prompt of {len(prompt)} tokens: answer of {length} tokens, asked for {CAP}.")
    print(f"  Finish reason {reason}, m_status {status}; should raise, or have the status IGNORED.")
raise SystemExit(silent)
