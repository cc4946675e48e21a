"""`python -m carpool.bridge`: a server over a URL as a stdio server. Started by the supervisor.

What to reach is in the environment (`carpool_protocol.carrier.remote`). Exit codes: 0 end of file; 1 the
server is gone, its stderr says why; 2 started by hand.
"""

import gc
import os
import sys
from importlib.util import find_spec

from carpool.bridge.error_texts import NO_EXTRA, RequestTrouble
from carpool.bridge.startup_failure import refuse
from carpool_protocol.carrier.remote import remote_from_environment
from carpool_protocol.runtime import core_dumps


def main() -> int:
    """Serve until end of file."""
    remote = remote_from_environment(os.environ)
    if remote is None:
        print("this is a child of carpool's: configure a server with `url` instead", file=sys.stderr)
        return 2
    core_dumps.turn_off()  # headers and logins are in memory here
    if find_spec("mcp") is None or find_spec("httpx2") is None:
        refuse(RequestTrouble(NO_EXTRA), remote.server)
        return 0
    gc.disable()  # what is imported stays: collections in between find nothing, and take their time
    from carpool.bridge.process import run

    gc.freeze()
    gc.enable()
    return run(remote)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # What the supervisor writes to us from now on is lost, maybe: Python's own end takes a tenth of a second.
    os._exit(code)
