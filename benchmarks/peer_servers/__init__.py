"""The other servers of `python -m benchmarks peers`, each a script for an environment of its own, which has none of our code."""
