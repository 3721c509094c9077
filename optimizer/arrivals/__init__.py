"""What arrives: Markovian processes, and how many of their arrivals fall into a time."""
