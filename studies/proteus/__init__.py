"""The study of Proteus that ``proteus.py`` runs.

``readers`` take the published formats, ``systems`` are who is compared, ``one_queue`` compares batching on one device, and
``instances`` solves the instances with proven optima; ``computation`` runs them all, and ``results`` keeps what came out in files;
``claims`` asks of these what the paper says, ``drawings`` and ``page`` show them.
"""
