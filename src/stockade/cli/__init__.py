"""The command line `stockade`: the one place that prints, exits, and reads the environment for a person.

It decides nothing about walls or records: each command turns words into calls of the layers below.
"""

from stockade.cli.entry import main

__all__ = ["main"]
