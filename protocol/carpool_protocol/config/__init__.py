"""The configuration file that people write: strict reading, and errors with their place.

`jsonc` reads text, `translate` rewrites other programs' files in our form by the tables in `formats`, `parse`
makes the values of `model` by the one table in `settings`, `expand` fills in `${VAR}` and `late_values` the
numbers among them, `environment` decides whose environment a server gets, `load` is the only one that reads
files. All but `load` and the pages are pure: the broker's core may import them.
"""
