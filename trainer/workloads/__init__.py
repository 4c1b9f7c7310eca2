"""The built-in workloads, and the protocol by which a user's own model takes their place."""
