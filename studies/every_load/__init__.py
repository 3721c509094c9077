"""What one plan costs at rates that it was not made for: docs/every-load.md.

The perceptron of the policy zoo under two SLOs, at four arrival rates. Tables that wait to the last moment, made for each rate, and
one plan for every load are run at every rate, with cold starts as the platform has them. What they came to is kept in
data/every-load.csv; the page and its figure are made of it.
"""
