"""fastmcp's proxy as a server on stdio: `fastmcp_proxy.py URL`, or a command in place of the URL."""

import os
import sys

from fastmcp.client.transports import StdioTransport
from fastmcp.server import create_proxy

target = sys.argv[1]
if not target.startswith("http"):
    target = StdioTransport(command=target, args=sys.argv[2:], env=dict(os.environ))
create_proxy(target, name="proxy").run(show_banner=False)
