"""Look at a machine and its cluster for what commonly goes wrong. Begin with :mod:`checks`, which decides; :mod:`looking` reads."""
