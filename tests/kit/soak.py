"""The old place of `tests.world.soak`."""

from runpy import run_module

run_module("tests.world.soak", run_name="__main__")
