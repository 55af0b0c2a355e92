"""Other brokers under the workloads of this one, each used as a good user of it would: a module for each, and one for each
comparison."""
