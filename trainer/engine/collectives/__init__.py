"""The all-reduce of several tasks, with rendezvous and liveness."""
