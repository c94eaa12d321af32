"""The ragged engine with paged keys, a prefix cache, drafts and recurrent states: a teaching engine.

    blocks      who owns which block of keys, and which blocks hold a prefix that is known
    scheduler   the policy of the ragged engine over blocks and lanes; uses no tensors
    engine      keys and values in one pool, read and written by block table; drafts ride along
    drafting    where drafts come from, and how many of them hold
    states      a step as several batched passes, for models with recurrent states

It is as slow as the ragged engine and as plain: nothing is captured, compiled or overlapped. Planted
faults and oddities about blocks, prefixes, drafts and states are parts of it with one method
overridden. This file imports nothing, so that blocks and scheduler can be imported without torch.
"""
