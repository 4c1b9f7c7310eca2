"""Programs with manual placement: the chief says which operation runs on which task and device."""
