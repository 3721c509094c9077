"""What a function can run: the protocol every model keeps, and the models."""
