"""One engine on one model: found, built, run within limits, judged."""
