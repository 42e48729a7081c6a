"""Urls, with the media served as many projects do it."""

from pathlib import Path

from django.conf import settings
from django.urls import path
from django.views.static import serve

from notes import views
from notes.scan import scan

urlpatterns = [
    path("notes/", views.notes),
    path("add/", views.add),
    path("login/", views.login),
    path("whoami/", views.whoami),
    path("upload/", views.upload),
    path("media/<path:path>", serve, {"document_root": settings.MEDIA_ROOT}),
    path("pages/<path:path>", serve, {"document_root": Path(__file__).parent / "pages"}),
    path("cache/", views.cached),
    path("site/", views.site),
    path("mail/", views.mailbox),
    path("search/", views.search),
    path("stream/", views.stream),
    path("poll/", views.stream),
    path("events/", views.events),
    path("later/", views.later),
    path("job/", views.job),
    path("unbound/", views.unbound),
    path("transaction/", views.transaction),
    path("echo/", views.echo),
    path("dice/", views.dice),
    path("scan/", scan),
]
