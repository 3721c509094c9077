"""What tables do when run: one event loop that interprets any of them, with confidence intervals."""
