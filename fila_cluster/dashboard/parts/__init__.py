"""What pages are made of: numbers, charts, tables."""
