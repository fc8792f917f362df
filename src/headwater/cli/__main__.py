"""`python -m headwater.cli`, for a checkout whose script is not installed."""

from headwater.cli import main

main()
