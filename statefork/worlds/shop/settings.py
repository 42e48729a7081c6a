"""Django settings of the shop: plain Django, with nothing of statefork in them.

The stores (database, media, search index) are looked for under ``$STATEFORK_SHOP_BASE``. On the shared server nobody
sets it: there the web adapter chooses the stores per request, and without one the path below does not exist, so that
a query which no environment owns fails instead of finding some data.
"""

from __future__ import annotations

import os
from pathlib import Path

from oscar.defaults import *  # noqa: F403  Oscar asks for exactly this: settings start from its defaults

HERE = Path(__file__).resolve().parent
BASE = Path(os.environ.get("STATEFORK_SHOP_BASE") or "/nonexistent/statefork-shop-has-no-environment")

# Nothing here is secret: the shop listens on loopback only, and seeded sessions must mean the same in every process.
SECRET_KEY = "statefork-example-shop-on-loopback-only"
DEBUG = False
ALLOWED_HOSTS = ["shop.example", "localhost", "127.0.0.1", "[::1]"]
ROOT_URLCONF = "statefork.worlds.shop.urls"
WSGI_APPLICATION = "django.core.wsgi.get_wsgi_application"
SITE_ID = 1

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(BASE / "shop.sqlite3"),
        "ATOMIC_REQUESTS": True,
        "CONN_MAX_AGE": 600,
        "OPTIONS": {
            # A small page cache: the server keeps a connection for each environment and thread.
            # IMMEDIATE: a request that reads first and writes later would otherwise lose against a writer at once.
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA foreign_keys=ON;"
            " PRAGMA cache_size=-512",
        },
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}

# The location is an option of the storage, not MEDIA_ROOT: Oscar writes into MEDIA_ROOT while it renders a page.
STORAGES = {
    "default": {
        "BACKEND": "django.core.files.storage.FileSystemStorage",
        "OPTIONS": {"location": str(BASE / "media"), "base_url": "/media/"},
    },
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}
MEDIA_ROOT = ""
MEDIA_URL = "/media/"
STATIC_URL = "/static/"
STATICFILES_DIRS = [HERE / "static"]

HAYSTACK_CONNECTIONS = {
    "default": {
        "ENGINE": "haystack.backends.whoosh_backend.WhooshEngine",
        "PATH": str(BASE / "search"),
        "INCLUDE_SPELLING": False,
    }
}
HAYSTACK_SIGNAL_PROCESSOR = "haystack.signals.RealtimeSignalProcessor"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.sites",
    "django.contrib.flatpages",
    "oscar.config.Shop",
    "oscar.apps.analytics.apps.AnalyticsConfig",
    "oscar.apps.checkout.apps.CheckoutConfig",
    "oscar.apps.address.apps.AddressConfig",
    "statefork.worlds.shop.shipping.apps.ShippingConfig",
    "oscar.apps.catalogue.apps.CatalogueConfig",
    "oscar.apps.catalogue.reviews.apps.CatalogueReviewsConfig",
    "oscar.apps.communication.apps.CommunicationConfig",
    "oscar.apps.partner.apps.PartnerConfig",
    "oscar.apps.basket.apps.BasketConfig",
    "oscar.apps.payment.apps.PaymentConfig",
    "oscar.apps.offer.apps.OfferConfig",
    "oscar.apps.order.apps.OrderConfig",
    "oscar.apps.customer.apps.CustomerConfig",
    "oscar.apps.search.apps.SearchConfig",
    "oscar.apps.voucher.apps.VoucherConfig",
    "oscar.apps.wishlists.apps.WishlistsConfig",
    "oscar.apps.dashboard.apps.DashboardConfig",
    "oscar.apps.dashboard.reports.apps.ReportsDashboardConfig",
    "oscar.apps.dashboard.users.apps.UsersDashboardConfig",
    "oscar.apps.dashboard.orders.apps.OrdersDashboardConfig",
    "oscar.apps.dashboard.catalogue.apps.CatalogueDashboardConfig",
    "oscar.apps.dashboard.offers.apps.OffersDashboardConfig",
    "oscar.apps.dashboard.partners.apps.PartnersDashboardConfig",
    "oscar.apps.dashboard.pages.apps.PagesDashboardConfig",
    "oscar.apps.dashboard.ranges.apps.RangesDashboardConfig",
    "oscar.apps.dashboard.reviews.apps.ReviewsDashboardConfig",
    "oscar.apps.dashboard.vouchers.apps.VouchersDashboardConfig",
    "oscar.apps.dashboard.communications.apps.CommunicationsDashboardConfig",
    "oscar.apps.dashboard.shipping.apps.ShippingDashboardConfig",
    "widget_tweaks",
    "haystack",
    "treebeard",
    "django_tables2",
]
MIGRATION_MODULES = {"shipping": "oscar.apps.shipping.migrations"}

MIDDLEWARE = [
    "statefork.worlds.shop.assets.Assets",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.contrib.flatpages.middleware.FlatpageFallbackMiddleware",
    "oscar.apps.basket.middleware.BasketMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [HERE / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.debug",
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.template.context_processors.i18n",
                "django.contrib.messages.context_processors.messages",
                "oscar.apps.search.context_processors.search_form",
                "oscar.apps.checkout.context_processors.checkout",
                "oscar.apps.communication.notifications.context_processors.notifications",
                "oscar.core.context_processors.metadata",
            ]
        },
    }
]

AUTHENTICATION_BACKENDS = (
    "oscar.apps.customer.auth_backends.EmailBackend",
    "django.contrib.auth.backends.ModelBackend",
)
# Seeded passwords are public anyway, and a slow hash would only make every agent's log-in slow.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
SESSION_COOKIE_AGE = 60 * 60 * 24 * 365

USE_TZ = True
TIME_ZONE = "UTC"
USE_I18N = True
LANGUAGE_CODE = "en-gb"
FORMAT_MODULE_PATH = ["statefork.worlds.shop.formats"]
LANGUAGES = [("en-gb", "British English")]

EMAIL_BACKEND = "django.core.mail.backends.dummy.EmailBackend"
OSCAR_SEARCH_FACETS: dict[str, dict[str, object]] = {"fields": {}, "queries": {}}  # Whoosh's are stems, not names
OSCAR_FROM_EMAIL = "hello@shop.example"

OSCAR_SHOP_NAME = "Harbour & Pine"
OSCAR_SHOP_TAGLINE = "everyday things, well made"
OSCAR_DEFAULT_CURRENCY = "GBP"
OSCAR_ALLOW_ANON_CHECKOUT = True
OSCAR_MODERATE_REVIEWS = False
OSCAR_THUMBNAILER = "statefork.worlds.shop.assets.AsTheyAre"
OSCAR_IMAGE_FOLDER = "images/products/"
OSCAR_INITIAL_ORDER_STATUS = "Pending"
OSCAR_INITIAL_LINE_STATUS = "Pending"
OSCAR_ORDER_STATUS_PIPELINE = {
    "Pending": ("Being processed", "Cancelled"),
    "Being processed": ("Processed", "Cancelled"),
    "Processed": (),
    "Cancelled": (),
}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"stderr": {"class": "logging.StreamHandler"}},
    "loggers": {"django.request": {"handlers": ["stderr"], "level": "ERROR", "propagate": False}},
}
