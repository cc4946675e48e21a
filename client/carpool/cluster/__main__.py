"""`python -m carpool.cluster`: the node's process, started by the launcher."""

import sys

from carpool.cluster.process import run

if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
