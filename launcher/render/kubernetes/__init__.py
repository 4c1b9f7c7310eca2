"""A plan becomes Kubernetes objects that run to completion with kubectl alone."""
