"""Django's tasks on our broker."""
