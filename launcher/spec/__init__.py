"""A spec file becomes a validated ClusterSpec, or a list of problems that names every one."""
