"""What a search costs in time and memory: docs/search-scaling.md.

Measured on one core, the compiled code warm, each point in a process of its own: the least CPU time of three runs (on an idle
machine, as there is one thread, the time it takes), and by how much the first of them raised the peak of the resident memory. From
one base setting the largest batch size, the number of phases, of timeouts and of memory sizes are varied one at a time. What was
measured is kept in data/search-scaling.json; page and figure are made of it.
"""
