"""Runs a plan as containers: Compose starts them, a supervisor process a run watches them, the engine starts lost ones again."""
