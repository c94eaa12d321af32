"""How tokens are chosen beyond plain greedy decoding, and what proposes them: parts of the contract."""
