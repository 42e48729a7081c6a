"""What an agent can do, as data: ``from statefork.actions import Click, Fill, Goto``.

Each class documents itself in :mod:`statefork.adapters.resources.browser.actions`; ``Run``, for terminals, in
:mod:`statefork.adapters.resources.shell.actions`.
"""

from __future__ import annotations

from statefork.adapters.resources.browser.actions import (
    Back,
    Check,
    Click,
    CloseTab,
    File,
    Fill,
    Forward,
    Goto,
    Hover,
    NewTab,
    Press,
    Reload,
    Scroll,
    Select,
    SwitchTab,
    Upload,
    Wait,
)
from statefork.adapters.resources.shell.actions import Run

__all__ = [
    "Back",
    "Check",
    "Click",
    "CloseTab",
    "File",
    "Fill",
    "Forward",
    "Goto",
    "Hover",
    "NewTab",
    "Press",
    "Reload",
    "Run",
    "Scroll",
    "Select",
    "SwitchTab",
    "Upload",
    "Wait",
]
