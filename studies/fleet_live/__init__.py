"""A live fleet beside its simulation: docs/fleet-live.md.

A buffer, Redis, ``sluice control --fleet`` and five workers that sleep for as long as their profiles say get the requests of a
recorded day, compressed to minutes; the same control loop gets the same requests in the simulator. What came of both is kept in
data/fleet-live.csv and data/fleet-live-facts.json, the counts of the day are in data/fleet-live-day.csv; the page and its figure
are made of them. The counts are of the Numenta Anomaly Benchmark (realTweets, AMZN, 6 and 3 March 2015; MIT licence).
"""
