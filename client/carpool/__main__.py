"""`python -m carpool` is `carpool`."""

from carpool.entry import main

main()
