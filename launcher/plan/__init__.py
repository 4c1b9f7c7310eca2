"""A ClusterSpec and a target become a Plan: tasks, addresses, environment, restart rules."""
