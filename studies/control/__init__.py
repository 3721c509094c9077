"""A plan that is tuned while the requests come, beside plans that are not: docs/control.md.

A day of two real loads at two rates, in windows of five minutes: static plans, BATCH again and again, control, and for each window
the best plan of all that were tried, known beforehand. What they came to is kept in data/control.csv, of which the page and its
figure are made.
"""
