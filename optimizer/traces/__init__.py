"""What was recorded: traces, their files and columns, their statistics and drift."""
