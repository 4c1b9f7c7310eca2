"""Runs a plan as processes of this machine: one supervisor process per run, which keeps its state in files."""
