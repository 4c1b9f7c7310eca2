"""Runs a plan as containers: Compose starts them, one supervisor process per run watches them, the engine starts lost ones again."""
