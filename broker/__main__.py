"""`python -m broker` is `partibus`."""

from broker.cli import main

main()
