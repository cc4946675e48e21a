"""The client half of MCP: server processes, pools, placement, deadlines, restarts."""
