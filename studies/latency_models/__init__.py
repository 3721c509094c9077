"""The exact latency law and BATCH's approximation against simulation: docs/latency-models.md.

Every setting of a grid arrivals x batch size x timeout x service is simulated by a simulator of this study, which shares nothing
with the event loop of ``sluice.optimizer.simulation`` and nothing with the models: it walks the jumps of the arrival process, fills
batches by their definition and draws each service time by inverting its quantile function. Beside the grid there are settings of
the kind that BATCH (Ali et al., SC'20) was tried on, and held-out ones whose arrivals, timeout and service are drawn at random.

data/latency-models.csv has a row for each setting and quantile; page and figures but the CDFs are made of it. Classes that share a
queue have settings, a simulator and data of their own (``class_*``, data/latency-classes.csv); ``--compute-classes`` makes these
alone anew, in half a minute.
"""
