"""Analysis of a cluster's numbers: pure functions of one or two snapshots of all counters. Begin with :mod:`watch`."""
