"""The calls of clients, a module for each topic: arguments to commands, answers to results, the same for both clients."""
