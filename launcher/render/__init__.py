"""A plan becomes documents that other programs run: a Compose file, Kubernetes manifests. Pure."""
