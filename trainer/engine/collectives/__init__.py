"""Communication of tasks in step: all-reduce, rendezvous and liveness."""
