"""Reads one cluster spec and runs it on this machine, under Docker Compose or on Kubernetes."""

__version__ = "0.1.0"
