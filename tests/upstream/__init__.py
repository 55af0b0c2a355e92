"""Test suites of other projects, run over this broker. They are fetched when they run: nothing of theirs is here."""
