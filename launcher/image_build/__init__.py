"""Builds the trainer image: its context from the installed launcher, the engine's progress for people, its failures with remedies."""
