"""Views that keep state in a database, files, a cache, an index, sessions, module globals, threads and streams.

Where a view must wait, it waits for a line from a named pipe, so that the tests decide when it goes on.
"""

import contextvars
import random
import secrets
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from django.contrib.contenttypes.models import ContentType
from django.contrib.sites.models import Site
from django.core import mail
from django.core.cache import cache, caches
from django.core.files.base import ContentFile
from django.core.files.storage import default_storage
from django.db import IntegrityError
from django.db import transaction as db_transaction
from django.http import HttpResponse, JsonResponse, StreamingHttpResponse
from django.utils import timezone
from haystack.query import SearchQuerySet

from notes.models import Note

POOL = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pool")
EARLY_CACHE = caches["default"]  # taken at import, as many projects do
EARLY_QUERY = SearchQuerySet()


def wait_line(pipe):
    """Block until the test writes a line into the pipe; empty when the pipe was closed. Takes no byte of the next."""
    with Path(pipe).open("rb", buffering=0) as lines:
        return lines.readline().decode().strip()


def notes(request):
    """All titles."""
    return JsonResponse({"titles": sorted(Note.objects.values_list("title", flat=True))})


def add(request):
    """A note; 409 if its title is taken."""
    try:
        note = Note.objects.create(title=request.POST["title"], body=request.POST.get("body", ""))
    except IntegrityError:
        return HttpResponse("taken", status=409)
    return JsonResponse({"id": note.pk})


def login(request):
    """A session that knows its user."""
    request.session["user"] = request.POST["user"]
    return HttpResponse("ok")


def whoami(request):
    """Whom the session knows."""
    return HttpResponse(request.session.get("user", ""))


def upload(request):
    """A file in the default storage."""
    name = default_storage.save(request.POST["name"], ContentFile(request.POST["body"].encode()))
    return HttpResponse(name)


def cached(request):
    """Set or read one key, through the cache and through a reference taken at import."""
    if request.method == "POST":
        cache.set("key", request.POST["value"])
    return JsonResponse({"value": cache.get("key"), "early": EARLY_CACHE.get("key")})


def site(request):
    """The current site's name, from Django's module-level cache."""
    if request.method == "POST":
        Site.objects.filter(pk=1).update(name=request.POST["name"])
        Site.objects.clear_cache()
    return JsonResponse({"name": Site.objects.get_current().name, "type": ContentType.objects.get_for_model(Note).pk})


def mailbox(request):
    """Send a letter, or read what was sent."""
    if request.method == "POST":
        mail.send_mail(request.POST["subject"], "body", "a@notes.example", ["b@notes.example"])
    return JsonResponse({"subjects": [letter.subject for letter in getattr(mail, "outbox", [])]})


def search(request):
    """Titles found, through a query set made at import."""
    return JsonResponse({"titles": sorted(hit.title for hit in EARLY_QUERY.filter(content=request.GET["q"]))})


def stream(request):
    """Two chunks; between them it waits. Each says how many notes there are now."""
    pipe = request.GET["pipe"]

    def chunks():
        yield f"{Note.objects.count()}\n".encode()
        wait_line(pipe)
        yield f"{Note.objects.count()}\n".encode()

    return StreamingHttpResponse(chunks(), content_type="text/plain")


def events(request):
    """A server-sent event for each line of the pipe, each with the number of notes."""
    pipe = request.GET["pipe"]

    def chunks():
        yield b": open\n\n"
        while line := wait_line(pipe):
            yield f"data: {line} {Note.objects.count()}\n\n".encode()

    return StreamingHttpResponse(chunks(), content_type="text/event-stream")


def later(request):
    """Answer at once; a thread writes a note when the pipe says so."""

    def write():
        wait_line(request.GET["pipe"])
        Note.objects.create(title=request.GET["title"])

    threading.Thread(target=write, name="mailer").start()
    return HttpResponse("started")


def job(request):
    """The same in a pool whose thread outlives all requests."""

    def write():
        wait_line(request.GET["pipe"])
        Note.objects.create(title=request.GET["title"])

    POOL.submit(write)
    return HttpResponse("queued")


def unbound(request):
    """What code that belongs to no environment gets from each store."""
    attempts = {
        "database": Note.objects.count,
        "cache": lambda: cache.get("key"),
        "early cache": lambda: EARLY_CACHE.get("key"),
        "media": lambda: default_storage.exists("x"),
        "search": lambda: list(EARLY_QUERY.filter(content="x")),
        "session": lambda: request.session.__class__("a" * 32).load(),
        "site": Site.objects.get_current,
        "content types": lambda: ContentType.objects.get_for_model(Note),
        "mail": lambda: list(mail.outbox),
    }
    seen = {}
    for name, attempt in attempts.items():
        try:
            seen[name] = repr(contextvars.Context().run(attempt))
        except Exception as error:  # noqa: BLE001 - its name is the answer
            seen[name] = type(error).__name__
    return JsonResponse(seen)


def transaction(request):
    """An event stream that holds a transaction open."""

    def chunks():
        with db_transaction.atomic():
            Note.objects.get_or_create(title="in a transaction")
            yield b"data: open\n\n"
            wait_line(request.GET["pipe"])
        yield b"data: done\n\n"

    return StreamingHttpResponse(chunks(), content_type="text/event-stream")


def echo(request):
    """What reached the application of the request."""
    return JsonResponse({key: str(value) for key, value in request.META.items() if key.isupper()})


def dice(request):
    """What the server draws and what time it has there; what is posted is kept under a name that it has drawn."""
    drawn = f"{random.random()} {secrets.token_hex(4)} {timezone.now():%Y-%m-%dT%H}"
    if request.method == "POST":
        note = Note.objects.create(title=f"{uuid.uuid4()} {request.POST['title']}", body=drawn)
        return HttpResponse(f"{note.title} {drawn}")
    page = Path(__file__).parent / "pages" / "dice.html"
    return HttpResponse(page.read_text().replace("SERVER", drawn))
