"""The wire protocol of fila-cluster, as plain data: no sockets, no clock, no state. The README has the modules in order."""
