"""The parts that all processes of a cluster have in common: the bond to the parent, time, the log, and files."""
