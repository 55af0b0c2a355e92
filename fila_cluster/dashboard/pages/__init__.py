"""The pages, one module each: ``register`` adds it, a class of its own keeps it up to date."""
