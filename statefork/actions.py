"""What an agent can do, as data: ``from statefork.actions import Click, Fill, Goto``.

Each class documents itself in :mod:`statefork.adapters.resources.browser.actions`.
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
    "Scroll",
    "Select",
    "SwitchTab",
    "Upload",
    "Wait",
]
