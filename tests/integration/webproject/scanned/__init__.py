"""The shop's own settings and urls, with one more view: the scan for a marker."""
