"""The version of the distribution, to which all packages of this repository belong; the build reads it here.

Reading it from :mod:`importlib.metadata` costs a seventh of a process's start.
"""

from typing import Final

VERSION: Final = "0.1.0"
