"""mistral.rs 0.9.5: behind a prompt that is found in the cache, repetition_penalty does not count its tokens."""

import random
import sys
import tempfile

from setup_mistralrs import VOCAB_SIZE, runner, save, stream

NUM = 20  # conversations of two turns
is_wrong, draw = False, random.Random(0)
firsts = [[draw.randrange(VOCAB_SIZE) for _ in range(12)] for _ in range(NUM)]
with tempfile.TemporaryDirectory() as folder:
    save(folder)
    for penalty in (1.0, 1.3, 2.0):
        answers = []
        for num_kept in (0, 16):
            engine = runner(folder, prefix_cache_n=num_kept)
            seconds = [[*first, *stream(engine, first, 4), 40, 41] for first in firsts]
            answers.append([[*stream(engine, each, 12, repetition_penalty=penalty)] for each in seconds])
        num_same = sum(map(list.__eq__, *answers))
        print(f"repetition_penalty {penalty}: {num_same} of {NUM} second turns are answered as without the cache")
        is_wrong |= num_same < NUM
sys.exit(is_wrong)
