"""The shop's urls: Oscar at the root, Django's admin, and the media files of whichever environment asks."""

from __future__ import annotations

from django.apps import apps
from django.contrib import admin
from django.urls import include, path

from statefork.worlds.shop.assets import media

urlpatterns = [
    path("i18n/", include("django.conf.urls.i18n")),
    path("admin/", admin.site.urls),
    path("media/<path:name>", media),
    path("", include(apps.get_app_config("oscar").urls[0])),
]
