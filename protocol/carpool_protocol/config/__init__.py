"""What people write: the configuration file, read strictly and explained.

`jsonc` reads text, `shape` turns it into the values of `model` by the one table in `settings`, `expand` fills
in `${VAR}`, `environment` decides whose environment a server gets, `load` is the only one that reads files.
All but `load` and `page` are pure: the broker's core may import them.
"""
