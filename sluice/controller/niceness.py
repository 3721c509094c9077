"""At which priority that is done which can wait, beside buffers and workers of the same machine."""

NICENESS = 10
