"""Celery and kombu on this broker."""
