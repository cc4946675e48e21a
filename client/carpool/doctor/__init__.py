"""The findings of `carpool doctor`: what is wrong on this machine, and the line that repairs it.

The files here know nothing of: terminals, how agents are served.
"""
