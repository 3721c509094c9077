"""What comes in: traces, Markovian arrival processes and their fits."""
