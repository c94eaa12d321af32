"""One engine on every causal-LM type of transformers, each as a tiny random model."""
