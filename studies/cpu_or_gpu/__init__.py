"""Functions, workers or both, by arrival rate: docs/cpu-or-gpu.md.

A convolutional network, one whose time is reading its weights, and a large one, as a function on CPUs and on workers paid by the
hour, GPUs where times of one are published. Every cell asks for the cheapest of each kind that surely keeps the SLO, and runs MArk
beside them.
"""
