"""Runs, wherever they are: status, events, logs, and the files in which a process of this machine stores them."""
