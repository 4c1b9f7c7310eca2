"""A plan becomes documents that other programs run: a Compose file, Kubernetes manifests.

Pure, except that the files of `code` and the trainer's sources are read, and golden.py writes.
"""
