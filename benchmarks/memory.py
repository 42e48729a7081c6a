"""Memory of environments: sites on servers that all of them share, against a private stack for each.

    ./dev bench memory [--environments N] [--sites shop,tracker,wiki] [--json]

For each of the example sites both worlds are opened one after the other: as packaged (`tracker`), and on private
backends (`tracker-private`), whose databases are on a PostgreSQL of each environment's own; the shop's are SQLite files
in both. Every environment is asked for the same pages, all of them right before memory is read. What is told is the sum
of PSS (a page that n processes map counts 1/n for each) over all processes that serve the world: those of each resource
with all their descendants, keepers included; and of what: anonymous memory (heaps), files (programs and libraries),
and shared memory (buffers of PostgreSQL, PHP's caches). `each` is what an environment after the first has added.
`engine` is what this process has grown by, and is in no ratio.

What the figures don't cover: browsers (shared or not, an environment in use has a renderer), the page cache, disk, and
what a longer life adds to caches and heaps. PHP's workers end after a minute without a request; here they are counted
in both worlds. Pages that processes of other worlds on this machine map, too, count less.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio
import httpx
import psutil
from _machine import machine

from statefork.adapters.interfaces.environment import Environment
from statefork.adapters.interfaces.python import Engine, open_engine

ENVIRONMENTS = 16
PAGES = {
    "shop": ("/", "/catalogue/", "/search/?q=lamp", "/accounts/login/"),
    "tracker": ("/", "/projects", "/issues", "/search?q=cart", "/login"),
    "wiki": ("/wiki/Main_Page", "/wiki/Special:RecentChanges", "/wiki/Special:AllPages", "/index.php?search=river"),
}
WORLDS = Path(import_module("statefork.worlds").__file__ or "").parent
KINDS = {"Pss": "all", "Pss_Anon": "heaps", "Pss_File": "files", "Pss_Shmem": "shared"}
_MIB = 1 << 20


def contract_of(site: str, *, private: bool) -> str:
    """The packaged contract, without its browser; a private stack has a database server of its own, too."""
    name = f"{site}-private" if private else site
    text = (WORLDS / site / f"{name}.toml").read_text()
    text = re.sub(r"^\[resources\.browser\].*?(?=^\[|\Z)", "", text, flags=re.MULTILINE | re.DOTALL)
    return text.replace('adapter = "postgres"', 'adapter = "postgres"\nstrategy = "private"') if private else text


async def visit(env: Environment, site: str) -> None:
    """Ask for each of the site's pages once."""
    address = env.base_url(site)
    async with httpx.AsyncClient(base_url=address, timeout=120, trust_env=False, follow_redirects=True) as client:
        for page in PAGES[site]:
            (await client.get(page)).raise_for_status()


def pss_mib(processes: set[psutil.Process]) -> dict[str, float]:
    """Of those that live still, by kind, and ``all`` together (``smaps_rollup``)."""
    found = dict.fromkeys(KINDS.values(), 0.0)
    for process in processes:
        try:
            lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
        except OSError:  # it has ended
            continue
        for line in lines:
            name, _, rest = line.partition(":")
            if name in KINDS:
                found[KINDS[name]] += int(rest.split()[0]) / 1024
    return found


def with_descendants(pids: tuple[int, ...]) -> set[psutil.Process]:
    """The processes, and all below them."""
    found: set[psutil.Process] = set()
    for pid in pids:
        try:
            process = psutil.Process(pid)
            found |= {process, *process.children(recursive=True)}
        except psutil.NoSuchProcess:
            continue
    return found


def processes_of(engine: Engine) -> dict[str, set[psutil.Process]]:
    """Those of each resource; ``others``: whatever else this process has started."""
    groups: dict[str, set[psutil.Process]] = {}
    seen: set[psutil.Process] = set()
    for name, resource in engine.kernel.resources.items():
        pids = getattr(resource, "process_ids", None)  # of those that have processes
        if pids is not None:
            groups[name] = with_descendants(pids()) - seen
            seen |= groups[name]
    if others := set(psutil.Process().children(recursive=True)) - seen:
        groups["others"] = others
    return groups


def contract_at(tmp: Path, site: str, *, private: bool) -> Path:
    """The file of a world."""
    tmp.mkdir()
    file = tmp / "world.toml"
    file.write_text(contract_of(site, private=private))
    return file


def weighed(engine: Engine) -> tuple[dict[str, dict[str, float]], float]:
    """MiB of each group of processes by kind, and of all together."""
    groups = {name: pss_mib(found) for name, found in processes_of(engine).items()}
    return groups, sum(group["all"] for group in groups.values())


async def measure(site: str, environments: int, contract: Path) -> dict[str, Any]:
    """One world with all its environments."""
    before = psutil.Process().memory_full_info().uss
    async with open_engine(contract, state=contract.parent / "state") as engine:
        envs = [await engine.create("env-0")]
        await visit(envs[0], site)
        _, first = weighed(engine)
        for number in range(1, environments):
            envs.append(await engine.create(f"env-{number}"))
            await visit(envs[-1], site)
        for env in envs:  # so that what serves it was just used
            await visit(env, site)
        groups, total = weighed(engine)
        return {
            "groups": {
                name: {"processes": len(processes), **{kind: round(mib, 1) for kind, mib in groups[name].items()}}
                for name, processes in processes_of(engine).items()
            },
            "servers_mib": round(total, 1),
            "each_mib": round((total - first) / max(1, environments - 1), 1),
            "engine_mib": round((psutil.Process().memory_full_info().uss - before) / _MIB, 1),
        }


async def run(sites: list[str], environments: int) -> dict[str, Any]:
    """Every site both ways."""
    result: dict[str, Any] = {"machine": machine(), "environments": environments, "sites": {}}
    with tempfile.TemporaryDirectory(prefix="sf-memory-") as folder:
        for site in sites:
            one = contract_at(Path(folder, f"{site}-shared"), site, private=False)
            shared = await measure(site, environments, one)
            one = contract_at(Path(folder, f"{site}-private"), site, private=True)
            private = await measure(site, environments, one)
            groups = shared["groups"].keys() & private["groups"].keys()
            ratios = {
                name: round(private["groups"][name]["all"] / shared["groups"][name]["all"], 1)
                for name in sorted(groups)
            }
            ratios["all"] = round(private["servers_mib"] / shared["servers_mib"], 1)
            result["sites"][site] = {"shared": shared, "private": private, "ratio": ratios}
    return result


def show(result: dict[str, Any]) -> None:
    """Lines for people."""
    print(f"{result['machine']}; {result['environments']} environments; MiB of PSS")
    for site, found in result["sites"].items():
        print(f"{site}: " + ", ".join(f"{name} {ratio} times" for name, ratio in found["ratio"].items()))
        for way in ("shared", "private"):
            one = found[way]
            print(f"  {way}: {one['servers_mib']}, each {one['each_mib']}; the engine grew by {one['engine_mib']}")
            for name, group in one["groups"].items():
                print(f"    {name}: " + ", ".join(f"{kind} {value}" for kind, value in group.items()))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", type=int, default=ENVIRONMENTS, help="at once, in each world")
    parser.add_argument("--sites", default=",".join(PAGES), help="of shop, tracker, wiki")
    parser.add_argument("--json", action="store_true", help="print one object")
    given = parser.parse_args()
    result = anyio.run(run, given.sites.split(","), given.environments, backend="trio")
    if given.json:
        json.dump(result, sys.stdout, indent=2)
        print()
    else:
        show(result)


if __name__ == "__main__":
    main()
