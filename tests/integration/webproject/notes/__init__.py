"""A small Django project that keeps state in every way that the tests speak of. It knows nothing of statefork."""
