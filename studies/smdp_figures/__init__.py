"""The study of the SMDP papers that ``smdp_figures.py`` runs.

``servers`` are the papers' scenarios, ``coefficients`` what lies behind the printed ones; ``computation`` has the answers of the
solvers, and ``results`` keeps them in files; ``claims`` asks of these what the papers say, ``drawings`` and ``page`` show them.
"""
