"""A day on one fixed server whose table follows the rate, beside tables that stay: docs/smdp-day.md.

Greedy and the table of the mean rate, tables by the rate of the period before, control, and for each window the best table of all
that were tried, known beforehand. What they came to is kept in data/smdp-day.csv, of which the page and its figure are made.
"""
