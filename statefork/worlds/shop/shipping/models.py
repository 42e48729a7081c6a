"""Oscar's models, unchanged."""

from oscar.apps.shipping.models import *  # noqa: F403  the documented way to fork an Oscar application
