"""What is watched while requests come, how soon it is noticed and how often for nothing: docs/watching.md.

The figures are those of ``benchmarks.change_tests``; they are kept in data/watching.csv, of which the page is made.
"""
