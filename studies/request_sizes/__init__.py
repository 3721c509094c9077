"""Requests of different size: one queue, size classes, and a table that sees classes, predicted and run: docs/request-sizes.md.

The sizes are those of the requests of a real trace (sluice/local/traces); the service times were measured over batch x size of a
transformer encoder that pads (``measurement``). What is planned knows the first half of the sizes, what is run has the second.
"""
