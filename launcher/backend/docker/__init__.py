"""Runs a plan as containers: Compose starts them, a keeper process a run watches them, the engine starts lost ones again."""
