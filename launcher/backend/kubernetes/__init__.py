"""Runs on Kubernetes: creates, watches and reads their objects as JSON, and does the work that no controller of a cluster does."""
