"""The bridge: a stdio MCP server whose real one is reached over a URL.

A process of its own for each instance, run and watched by the supervisor like any other server. The
transports are those of the official `mcp` SDK, used at message level: what passes is JSON-RPC, and no field
is sieved out.

    process ── talk ── SDK transport ── honest_client ── network
                           (find: which transport)  ├── bearer ── logins (tokens on disk)
                                                    ├── meaning: what a response or a failure means
                                                    ├── listening: streams that are opened again
                                                    └── giving_up: what was cancelled and is not answered
"""
