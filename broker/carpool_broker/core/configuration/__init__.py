"""What the configuration in force comes to: servers, pools, profiles and switches of each class of sessions.

The files here know nothing of: files and directories (`config`).
"""
