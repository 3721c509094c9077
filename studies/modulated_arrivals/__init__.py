"""What one table per phase saves where arrivals have phases: docs/modulated-arrivals.md.

The server is the one of the SMDP papers (GoogLeNet on a Tesla P4); arrivals are MMPP(2) of several contrasts, durations and loads,
and a real trace. Of every policy stands what it costs exactly where it does not look at the phase, or could see it; what the tables
cost under a filter that must guess the phase is simulated, always as the difference to another policy on the same arrivals.

data/modulated-arrivals.csv has a row for each setting and policy; the page and the first figure are made of it. Seconds in the
data, milliseconds on the page.
"""
