"""What to do about it: the search for a plan."""
