"""The machine that a benchmark ran on, in words."""

from __future__ import annotations

import os
import platform
import sqlite3
from pathlib import Path


def machine() -> str:
    """Cores, processor, kernel, versions, and how busy it was."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if "model name" in line)
    model = next(models, platform.processor() or platform.machine())
    versions = f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}"
    where = f"{os.cpu_count()} cores, {model}, {platform.system()} {platform.release()}, {versions}"
    return f"{where}, load {os.getloadavg()[0]:.1f}"
