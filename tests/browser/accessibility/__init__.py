"""The dashboard in a real browser, over a real cluster."""
