"""Whether a place can run clusters, and this one: what is there, what is lacking, and what to do about it."""
