"""`python -m sluice`: the command line, for where its script is not on the path."""

from sluice.cli.main import main

main()
