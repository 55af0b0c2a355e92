"""A Django project: ``DJANGO_SETTINGS_MODULE=tests.django.project.settings``. The environment names its broker and its database."""
