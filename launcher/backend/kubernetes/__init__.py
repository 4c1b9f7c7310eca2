"""Runs on Kubernetes: their objects, made, watched and read as JSON, and the work that no controller of a cluster does."""
