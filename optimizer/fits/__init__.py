"""Which process a trace is from: the fits, and the choice between them."""
