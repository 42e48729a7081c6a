"""What can go wrong with the file of an environment."""

from __future__ import annotations

from statefork.journal.errors import StateforkError


class ExportUnreadable(StateforkError):
    """The file is no export of an environment, is damaged or cut off, or is of a newer format. Nothing was made of it.

    ``facts``: ``path``, and ``place``: where in the file the fault is.
    """

    code = "export_unreadable"


class ContractDiffers(StateforkError):
    """The file's environment is of another contract than the engine serves."""

    code = "contract_differs"


class NotPortable(StateforkError):
    """A resource (``facts`` name it) can't carry its versions in a file, or the history is longer than one may be."""

    code = "not_portable"


def unreadable(path: object, place: str, why: str, hint: str = "") -> ExportUnreadable:
    """The error that says where in the file the fault is."""
    return ExportUnreadable(
        f"{path} can't be imported: {place}: {why}" if place else f"{path} can't be imported: {why}",
        hint=hint or "Get the file anew, and compare its SHA-256 with the one that the export told",
        path=str(path),
        place=place,
    )
