"""Applications with promises of their own, in shared queues: HarmonyBatch's plans, BATCH's and Sluice's: docs/harmonybatch.md.

HarmonyBatch's own latency model of VGG-19 on CPU and GPU functions and its prices, for its own sets of applications and a random
family. Every plan is predicted, then run with Poisson arrivals.
"""
