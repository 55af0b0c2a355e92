"""Failures that were found once, shrunk and kept: a file each, with the options and the steps that are left."""
