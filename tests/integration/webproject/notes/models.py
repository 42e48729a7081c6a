"""One table, with a unique key."""

from django.db import models


class Note(models.Model):
    """What an environment writes."""

    title = models.CharField(max_length=200, unique=True)
    body = models.TextField(default="")
