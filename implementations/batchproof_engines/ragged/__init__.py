"""Continuous batching over ragged batches, in the fewest lines that can do it.

    engine       packs the tokens of a step into one row, runs the model and scatters the new keys
    scheduler    decides which sequences run, and which give their blocks back; uses no tensors
    delayed      the same engine reading each EOS a step late, a base for planted faults and oddities

The engine has one cache per sequence and concatenates them in every step, so it is slow by design. Most
planted faults and oddities are this engine with one method overridden. The engines' factory is
`engine.ragged`; this file imports nothing, so that the scheduler can be imported without torch.
"""
