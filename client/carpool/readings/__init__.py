"""The broker's answers at one moment, and what is shown of them: for `carpool top` and the web page.

The files here know nothing of: terminals, browsers, how the broker is asked.
"""
