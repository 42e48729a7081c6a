"""Finding Chromium and the flags it runs with. Standard library and statefork's errors only: ``doctor`` uses it too."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from statefork.engine.errors import MissingDependency

INSTALL_HINT = (
    "On Debian or Ubuntu: apt-get install chromium-headless-shell (or chromium). "
    "Elsewhere: playwright install --only-shell chromium, or set STATEFORK_CHROMIUM to the executable's path"
)

# The real binaries before the packages' shell wrappers: one process fewer, and its death is seen at once.
_USUAL_PLACES = (
    "/usr/lib/chromium/chromium-headless-shell",
    "/usr/lib/chromium-browser/chromium-headless-shell",
)
_NAMES = (
    "chromium-headless-shell",
    "chrome-headless-shell",
    "headless_shell",
    "chromium",
    "chromium-browser",
    "google-chrome-stable",
    "google-chrome",
)
_PLAYWRIGHT_GLOBS = (
    "chromium_headless_shell-*/chrome-*/headless_shell",
    "chromium_headless_shell-*/chrome-*/chrome-headless-shell",
    "chromium-*/chrome-*/chrome",
)

FLAGS = (
    "--no-sandbox",  # Chromium refuses to run as root with it; the pages are those of the contract's world
    "--disable-gpu",
    "--disable-quic",  # UDP would go past the proxy
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-domain-reliability",
    "--no-pings",
    "--dns-prefetch-disable",
    # WebRTC must not send UDP past the proxy. Only the shell heeds this flag: see NO_WEBRTC for full Chromium.
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    # What decides pixels is fixed, so that screenshots can be compared.
    "--font-render-hinting=none",
    "--disable-lcd-text",
    "--force-color-profile=srgb",
)
# Playwright's own list: Chromium heeds the last --disable-features only, so whoever gives one has to repeat the others.
PLAYWRIGHT_DISABLED = (
    "AvoidUnnecessaryBeforeUnloadCheckSync",
    "DestroyProfileOnBrowserClose",
    "HttpsUpgrades",
    "HttpsFirstBalancedModeAutoEnable",
    "LensOverlay",
    "MediaRouter",
    "PaintHolding",
    "ThirdPartyStoragePartitioning",
    "AvoidCorsURLLoaderRestartOnRedirect",
    "TcpPortRandomizationWin",
    "OptimizationHints",
    "NetworkTimeServiceQuerying",
    "AimEnabled",
    "PreconnectToSearch",
    "msForceBrowserSignIn",
    "msEdgeUpdateLaunchServicesPreferredVersion",
)
# A new frame host for each document of one site: a third of what a navigation costs, and nothing that a page can see.
DISABLED = (*PLAYWRIGHT_DISABLED, "RenderDocument")
# Full Chromium only: without this it keeps a hidden renderer per page.
FULL_CHROMIUM_DISABLED = ("WebUIOmniboxPopup", "WebUIOmniboxAimPopup")
# Full Chromium reads that policy from elsewhere, so there pages get no WebRTC at all: an init script for each context.
NO_WEBRTC = "delete globalThis.RTCPeerConnection; delete globalThis.webkitRTCPeerConnection;"


def _playwright_cache() -> Path:
    configured = os.environ.get("PLAYWRIGHT_BROWSERS_PATH", "")
    return Path(configured) if configured not in ("", "0") else Path.home() / ".cache" / "ms-playwright"


def _revision(path: Path) -> int:
    digits = path.relative_to(_playwright_cache()).parts[0].rpartition("-")[2]
    return int(digits) if digits.isdigit() else 0


def is_headless_shell(executable: Path) -> bool:
    """Whether the executable is the headless shell: same engine, less memory, faster pages."""
    return "headless" in executable.name


def find_chromium(configured: str = "") -> Path:
    """The Chromium to use: configured, ``STATEFORK_CHROMIUM``, the usual places, PATH, Playwright's own download.

    The headless shell is preferred. Raises MissingDependency, saying what to install.
    """
    for wanted in (configured, os.environ.get("STATEFORK_CHROMIUM", "")):
        if wanted:
            found = shutil.which(wanted)
            if found is None:
                raise MissingDependency(f"there is no Chromium at {wanted}", hint=INSTALL_HINT)
            return Path(found)
    for place in _USUAL_PLACES:
        if os.access(place, os.X_OK):
            return Path(place)
    for name in _NAMES:
        found = shutil.which(name)
        if found is not None:
            return Path(found)
    for pattern in _PLAYWRIGHT_GLOBS:
        downloads = sorted(_playwright_cache().glob(pattern), key=_revision)
        if downloads:
            return downloads[-1]
    raise MissingDependency("no Chromium was found on this machine", hint=INSTALL_HINT)


SHARED_MEMORY = Path("/dev/shm")
SHARED_MEMORY_BYTES_MIN = 1 << 30  # a page needs some ten megabytes of it; containers have 64 unless told otherwise
_NO_DEV_SHM = "--disable-dev-shm-usage"


def launch_flags(executable: Path) -> list[str]:
    """The flags for this executable."""
    disabled = DISABLED if is_headless_shell(executable) else (*DISABLED, *FULL_CHROMIUM_DISABLED)
    return [*FLAGS, f"--disable-features={','.join(disabled)}"]


def unwanted_flags() -> list[str]:
    """Those of Playwright's own flags that are left out here.

    It sends Chromium's shared memory to the folder of temporary files, since ``/dev/shm`` of a container may be small.
    That folder is on the disk of the state: each picture of a page would be written there, and a disk that fills would
    take the pictures away from pages that are well.
    """
    return [_NO_DEV_SHM] if _free_bytes(SHARED_MEMORY) >= SHARED_MEMORY_BYTES_MIN else []


def _free_bytes(place: Path) -> int:
    try:
        found = os.statvfs(place)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize
