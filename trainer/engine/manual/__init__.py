"""Programs with manual placement: they assign their operations to devices themselves."""
