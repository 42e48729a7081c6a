"""A moment is shown as its day: what a page says of a registration or a review is the same when it is done again."""

DATETIME_FORMAT = "j N Y"
SHORT_DATETIME_FORMAT = "d/m/Y"
