"""Make the base: ``NOTES_BASE=DIR python -m notes.build``."""

import os
from pathlib import Path

os.environ["DJANGO_SETTINGS_MODULE"] = "notes.settings"


def main():
    """Tables, one site, one note, its index and an empty media directory."""
    import django
    from django.core.management import call_command

    django.setup()
    base = Path(os.environ["NOTES_BASE"])
    (base / "media").mkdir(parents=True)
    call_command("migrate", run_syncdb=True, verbosity=0)
    from django.contrib.sites.models import Site
    from django.db import connection

    from notes.models import Note

    Site.objects.update(name="base")
    Note.objects.create(title="first", body="hello")
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


if __name__ == "__main__":
    main()
