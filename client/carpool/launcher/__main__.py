"""`python -m carpool.launcher`: what `carpool up` does, without the rest of the command line.

Shims, the Python client and `carpool up --detach` start it. Owns the end of that process. Refuses to know the
options (`up`) and what a launcher does.
"""

import os
import sys

from carpool.launcher.up import up

if __name__ == "__main__":
    code = up(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # The lock is given up: whoever waited for that is to find nobody here, not an interpreter that tidies up.
    os._exit(code)
