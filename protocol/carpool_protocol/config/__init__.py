"""What people write: the configuration file, read strictly and explained.

`jsonc` reads text, `translate` puts other programs' files into our form by the tables in `foreign`, `shape`
makes the values of `model` by the one table in `settings`, `expand` fills in `${VAR}` and `late` the
numbers among them, `environment` decides whose environment a server gets, `load` is the only one that reads
files. All but `load` and the pages are pure: the broker's core may import them.
"""
