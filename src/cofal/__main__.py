"""`python -m cofal` is the `cofal` command."""

from cofal.cli import main

main()
