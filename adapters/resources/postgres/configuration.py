"""How statefork's own server is set up, and why.

A branch is a copy of a database, which begins and ends with a checkpoint of the whole server; hence few dirty pages at
any time, and a write-ahead log that nobody else needs. Nothing may write to a database behind its owner's back, or a
version would share less with its copies and an unchanged branch look changed: no autovacuum, no hint bits in the log.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from collections.abc import Mapping
from pathlib import Path

from statefork.adapters.resources.postgres.options import RESERVED_CONNECTIONS, Options

SUPERUSER = "postgres"
OWN_DATABASE = "postgres"
COW_EXTENT_BYTES = 8192
PRIVATE_SEGMENT_MB = 1  # of the write-ahead log of an environment's own server
_SINCE = {"scram_iterations": 16, "io_method": 18}
_BUILTIN_LOCALES_SINCE = 17
_CHECKSUMS_SINCE = 18  # by default, that is; before, there were none unless asked for
_FS_IOC_FSGETXATTR = 0x801C581F
_FS_IOC_FSSETXATTR = 0x401C5820
_FS_XFLAG_COWEXTSIZE = 0x00010000
_FSXATTR = struct.Struct("=IIIII8s")


def server_settings(options: Options) -> dict[str, str]:
    """The settings of the command line; a contract's own come last and win."""
    durable = options.survives == "os"
    return {
        "max_connections": str(options.max_connections),
        "superuser_reserved_connections": str(RESERVED_CONNECTIONS),
        "max_prepared_transactions": "64",
        "shared_buffers": "256MB",
        "dynamic_shared_memory_type": "mmap",  # below the data directory, where a killed server leaves nothing behind
        "autovacuum": "off",
        "jit": "off",
        "wal_level": "minimal",
        "max_wal_senders": "0",
        "max_wal_size": "2GB",
        "min_wal_size": "64MB",
        "checkpoint_timeout": "30min",
        "bgwriter_delay": "50ms",
        "bgwriter_lru_maxpages": "1000",
        "fsync": "on" if durable else "off",
        "full_page_writes": "on" if durable else "off",
        "recovery_init_sync_method": "syncfs",  # else a start after a crash opens every file of every database
        "scram_iterations": "1",  # the secrets are random; iterations would only slow each connect down
        "log_statement": "none",
        "log_min_error_statement": "panic",  # a statement may hold what nobody shall read in a log
        "log_min_messages": "warning",
        **options.settings,
    }


def private_settings(options: Options) -> dict[str, str]:
    """The same for the server of one environment: many run beside each other, and their files are copied."""
    settings = {
        **server_settings(options),
        "max_connections": str(min(options.max_connections, options.connections_per_environment_max + 24)),
        "shared_buffers": "32MB",
        "max_wal_size": "256MB",
        "min_wal_size": f"{2 * PRIVATE_SEGMENT_MB}MB",
        "wal_recycle": "off",  # a segment that was used before is shared with others, and would be unshared
        "wal_init_zero": "off",
        "io_method": "sync",  # no processes for reading
    }
    return {**settings, **options.settings}


def fitting(settings: Mapping[str, str], version: int) -> dict[str, str]:
    """Without those that a version of PostgreSQL does not know."""
    return {name: value for name, value in settings.items() if version >= _SINCE.get(name, 0)}


def initdb_options(version: int) -> list[str]:
    """How a cluster is made: text in UTF-8, compared byte by byte; as few writes as can be."""
    options = ["--no-sync", "--encoding=UTF8", "--auth=scram-sha-256", "--locale=C"]
    if version >= _BUILTIN_LOCALES_SINCE:
        options += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    else:
        options += ["--lc-ctype=C.UTF-8"]
    if version >= _CHECKSUMS_SINCE:
        options += ["--no-data-checksums"]
    if version >= _SINCE["scram_iterations"]:
        options += ["--set=scram_iterations=1"]
    return options


def access_rules() -> str:
    """pg_hba.conf: everybody by password, from this machine."""
    return "local all all scram-sha-256\nhost all all 127.0.0.1/32 scram-sha-256\nhost all all ::1/128 scram-sha-256\n"


def set_up_base(directory: Path) -> None:
    """On XFS, ask for small private extents: else each page written to a clone keeps 128 KiB. Databases inherit it."""
    with contextlib.suppress(OSError):  # another file system
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            data = bytearray(_FSXATTR.size)
            fcntl.ioctl(descriptor, _FS_IOC_FSGETXATTR, data)
            flags, extent, extents, project, _, padding = _FSXATTR.unpack(data)
            wanted = (flags | _FS_XFLAG_COWEXTSIZE, extent, extents, project, COW_EXTENT_BYTES, padding)
            fcntl.ioctl(descriptor, _FS_IOC_FSSETXATTR, _FSXATTR.pack(*wanted))
        finally:
            os.close(descriptor)
