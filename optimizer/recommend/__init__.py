"""Which setting is cheapest: the search over functions, tables and workers, and its answer."""
