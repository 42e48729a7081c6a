"""An example world: a third-party web shop (django-oscar on SQLite, with Whoosh search and product images).

The application's packages are untouched; everything here is configuration of the kind that every shop writes: settings,
urls, two template overrides, a shipping repository and a seed. Extra: ``pip install statefork[demo]``.
"""
