"""What the pages of docs/ with figures were made by: a package a study, named as its page.

Each has the same rooms: ``computation`` (the runs), ``results`` (what is kept of them, in ``data/``), ``claims`` (what is asked of
these), ``drawings`` and ``page`` (how they are shown), and ``__main__``, so that ``python -m studies.policy_zoo`` writes
docs/policy-zoo.md and its figures again from what is kept. What takes long is made anew only when asked for. Nothing of ``sluice``
imports this package, and no wheel holds it.
"""
