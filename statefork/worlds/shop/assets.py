"""Static files, media files and thumbnails of the shop, without a second server and without writing on a GET."""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.staticfiles import finders
from django.core.files.storage import default_storage
from django.db import transaction
from django.http import FileResponse, Http404, HttpRequest, HttpResponse, HttpResponseBase, HttpResponseNotModified

YEAR_S = 365 * 24 * 3600


class Assets:
    """Middleware that answers ``STATIC_URL`` from the installed packages, before sessions and database are touched.

    The files are the applications' own and never change while a process lives, so each is read once and kept.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response
        self.kept: dict[str, tuple[bytes, str, str]] = {}

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if not request.path_info.startswith(settings.STATIC_URL) or request.method not in {"GET", "HEAD"}:
            return self.get_response(request)
        found = self.find(request.path_info.removeprefix(settings.STATIC_URL))
        if found is None:
            return HttpResponse("no such file", status=404, content_type="text/plain")
        body, kind, etag = found
        response: HttpResponse
        if request.headers.get("If-None-Match") == etag:
            response = HttpResponseNotModified()
        else:
            response = HttpResponse(body, content_type=kind)
        response["ETag"] = etag
        response["Cache-Control"] = f"public, max-age={YEAR_S}, immutable"
        return response

    def find(self, name: str) -> tuple[bytes, str, str] | None:
        """Bytes, content type and ETag of a static file; None when no package has it."""
        kept = self.kept.get(name)
        if kept is not None:
            return kept
        path = finders.find(name)
        if not path or not Path(path).is_file():
            return None
        body = Path(path).read_bytes()
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        self.kept[name] = (body, kind, f'"{hashlib.sha256(body).hexdigest()[:24]}"')
        return self.kept[name]


@transaction.non_atomic_requests  # type: ignore[untyped-decorator]  # Django ships no types
def media(request: HttpRequest, name: str) -> HttpResponseBase:
    """A media file, from the storage that is bound now.

    ``no-cache``: the browser may keep the file but must ask, for an agent may upload another under the same name.
    """
    if request.method not in {"GET", "HEAD"}:
        return HttpResponse(status=405)
    try:
        path = Path(default_storage.path(name))
        state = path.stat()
        etag = f'"{state.st_mtime_ns:x}-{state.st_size:x}"'
        if request.headers.get("If-None-Match") == etag:
            response: HttpResponseBase = HttpResponseNotModified()
        else:
            response = FileResponse(path.open("rb"))
    except (OSError, ValueError) as error:
        raise Http404(name) from error
    response["ETag"] = etag
    response["Cache-Control"] = "no-cache"
    return response


class _Picture:
    """What Oscar's templates ask of a thumbnail, for a picture that is known only by its name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.url = default_storage.url(name)


class AsTheyAre:
    """Oscar's thumbnailer interface, giving the pictures themselves.

    The seed draws them in the size of the product page. Thumbnails made on demand would write rows and files on a GET.
    """

    def generate_thumbnail(self, source: Any, **_options: object) -> Any:
        """The picture: Oscar hands over a field file, or an object or text that only names one."""
        if hasattr(source, "url"):
            return source
        return _Picture(str(getattr(source, "name", source)))

    def delete_thumbnails(self, source: Any) -> None:
        """There are none."""
