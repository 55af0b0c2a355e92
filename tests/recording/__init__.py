"""The recording in README.md: real commands against a real broker, as an animated picture. See :mod:`__main__`."""
