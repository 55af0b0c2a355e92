"""Its settings."""

import os

SECRET_KEY = "of a test"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("TASKS_TEST_DATABASE", ":memory:"),
        "OPTIONS": {"timeout": 60, "transaction_mode": "IMMEDIATE"},
    },
    "replica": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
}
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "fila_cluster.django",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
ROOT_URLCONF = "tests.django.project.urls"
ALLOWED_HOSTS = ["testserver"]
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"


def _backend(**params: object) -> dict[str, object]:
    options = params.pop("OPTIONS", {})
    assert isinstance(options, dict)
    connection = {
        "endpoint": os.environ.get("FILA_ENDPOINT"),
        "timeout": 30.0,
        "namespace": os.environ.get("TASKS_TEST_NAMESPACE"),
    }
    return {"BACKEND": "fila_cluster.django.FilaBackend", "OPTIONS": connection | options, **params}


TASKS = {
    "default": _backend(
        QUEUES=["default", "emails"],
        OPTIONS={"fairness_key": "tests.django.project.tasks.tenant_of", "dashboard": "http://127.0.0.1:8555"},
    ),
    "retried": _backend(QUEUES=["retried"], OPTIONS={"max_attempts": 3, "retry_delay": 0.01}),
    "anywhere": _backend(QUEUES=[]),
    "at_once": _backend(QUEUES=["at-once"], ENQUEUE_ON_COMMIT=False),
}
