"""Runs on Kubernetes, as their objects tell of them. Pure: the objects are those of the API, as JSON has them."""
