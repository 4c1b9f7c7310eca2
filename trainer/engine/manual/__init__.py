"""Programs that place their operations by hand."""
