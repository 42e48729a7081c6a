"""The driving side: command line, gateway and the Python face."""
