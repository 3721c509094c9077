"""What a table does on one server, on paper: the queue at its decision epochs, and the exact latency."""
