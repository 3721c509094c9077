"""What a policy does on paper: batch sizes, waiting times, latency, cost."""
