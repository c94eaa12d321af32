"""openvino-genai 2026.4.1: generate() that refuses one request of a call leaves the others behind."""

from setup_openvino import asking, ids, pipeline

pipe = pipeline(num_kv_blocks=40)


def told(*prompts: list[int]) -> str:
    try:
        results = pipe.generate([ids(each) for each in prompts], [asking(3)] * len(prompts))
        return str([result.m_generation_ids[0] for result in results])
    except RuntimeError as error:
        return f"raised: {str(error).strip().splitlines()[-1]}"


right = told([1, 2, 3])
print("good:", right)
print("good and empty:", told([1, 2, 3], []))
after = told([1, 2, 3])
print(f"good again: {after}, should be {right}")
print("and again:", told([1, 2, 3]))
raise SystemExit(after != right)
