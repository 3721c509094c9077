"""How long a batch takes: service times from a profile, and laws of one server's."""
