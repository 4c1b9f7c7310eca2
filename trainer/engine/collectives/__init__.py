"""What tasks in step exchange: all-reduce, who is there, and who still lives."""
