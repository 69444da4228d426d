"""`python -m broker` is `partibus`."""

from broker.cli.main import main

main()
