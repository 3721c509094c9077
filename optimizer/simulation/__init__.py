"""What a policy does when run: the event loop that interprets any table."""
