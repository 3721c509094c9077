"""What batching does in front of an elastic function, on paper: batch sizes, waits, latency."""
