"""Proteus (Ahmad et al., ASPLOS'24) by this project's planner, control loop and simulator: docs/proteus.md.

What is run comes from a folder of profiles, variants and traces in the formats of Proteus's published artefact (``readers``), whose
licence allows comparison only: nothing of it is kept but what came out of the runs, in data/proteus-*.

``systems`` are who is compared, ``one_queue`` compares batching on one device, and ``instances`` solves the instances with proven
optima; ``computation`` runs them all.
"""
