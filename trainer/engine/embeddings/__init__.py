"""Large embedding layers that are updated by rows: spread over parameter servers, or whole in one process."""
