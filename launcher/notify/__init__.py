"""Notifies people of how a run goes: one message when it succeeds, fails or stalls, to a program or to a webhook."""
