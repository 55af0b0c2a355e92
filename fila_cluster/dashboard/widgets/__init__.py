"""What several pages show: tables, charts, payloads, editors."""
