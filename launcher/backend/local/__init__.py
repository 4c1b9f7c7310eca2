"""Runs a plan as processes on this machine: a supervisor process a run, files for all that it knows."""
