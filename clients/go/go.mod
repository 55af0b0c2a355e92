module fila-cluster/clients/go

go 1.19
