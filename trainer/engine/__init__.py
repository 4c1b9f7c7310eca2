"""The training engine: sessions say how replicas work together, the loop says when to save and evaluate."""
