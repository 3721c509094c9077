"""Every policy on real traces under several SLOs: docs/policy-zoo.md.

Each trace is cut in the middle of its time. Policies are made from the first half and run over the second, which none of them has
seen; those that learn on the way see each arrival when it has come. The excerpt in sluice/local/traces can be run by everybody; the
other traces only where their folder is given, else their rows stay as they stand in data/policy-zoo.csv.
"""
