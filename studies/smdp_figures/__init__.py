"""Tables and figures of the SMDP papers by this project's solvers: docs/smdp-figures.md.

Xu, Sun, Zhou, Niu, SMDP-Based Dynamic Batching for Efficient Inference on GPU-Based Platforms, ICC 2023, here *ICC*;
Xu, Zhou, Niu, SMDP-Based Dynamic Batching for Improving Responsiveness and Energy Efficiency of Batch Services, here *journal*.
What stands in ``PAPER_...`` is printed there. What the papers do not print is ours: the page says what.

``servers`` are the papers' scenarios, ``coefficients`` what lies behind the printed ones; ``computation`` has the answers of the
solvers. The data of each figure is kept in data/smdp-*.csv, that of the tables in data/smdp-tables.json; the page and the figures
are made of them. Milliseconds, W and mJ in the data and on the page, as in the papers; the rates that go into the solvers are per
second.
"""
