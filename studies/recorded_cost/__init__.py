"""Whether the cost that a recommendation begins with is what is billed: docs/recorded-cost.md.

The perceptron of the policy zoo under four SLOs, on every trace there is. What is said of the cost by the fitted process and on the
arrivals recorded is held against a run over the whole trace; and what is recommended from the first half is run over the second, at
the rate that the second half has. It is kept in data/recorded-cost.csv; the page and its figure are made of it.
"""
