"""Programs placed by hand: the chief says which operation runs on which task and device."""
