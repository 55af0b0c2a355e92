"""What :mod:`tests.support.hosts.kafka` is made of: the programs it needs, the kit that brokers run from, a broker, and the guard of processes."""
