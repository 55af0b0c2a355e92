"""Write the table of README.md from the documentation of the scenarios: ``python -m tests.field_reports``."""

from tests.field_reports.reports import README, with_table

README.write_text(with_table(README.read_text()))
