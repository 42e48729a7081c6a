"""The shop's urls behind the scan's."""

from django.urls import include, path
from notes.scan import scan

urlpatterns = [path("scan/", scan), path("", include("statefork.worlds.shop.urls"))]
