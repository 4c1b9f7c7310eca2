"""Embedding tables whose rows are spread over parameter servers, whatever their size."""
