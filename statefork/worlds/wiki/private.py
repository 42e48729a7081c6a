"""MediaWiki for one environment alone: a command for the adapter ``process`` (see ``wiki-private.toml``).

::

    python -m statefork.worlds.wiki.private      in the directory of site.toml

It starts nginx and becomes php-fpm: nothing of Python stays. What they listen at and where the stores are is told by
variables: PORT, STATEFORK_RUN (a directory for sockets and configurations), WIKI_MEDIA, and libpq's own for the
database.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import msgspec

from statefork.adapters.resources.web.behind.serving import fpm_configuration
from statefork.adapters.resources.web.behind.site import Site, find_program, read_site
from statefork.adapters.resources.web.stack import Setup

_WORKERS = 5  # requests of one environment at one time, one of which runs jobs
_TOLD = ("PGHOST", "PGPORT", "PGDATABASE", "PGUSER", "PGPASSWORD", "WIKI_MEDIA")
_PREPENDED = Path(__file__).with_name("private.php")
_SOCKET = Path("/proc/self/cwd/fpm.sock")  # of both: the path of their directory may be too long for a socket
_WATCHED = 'until [ -S fpm.sock ]; do sleep 0.01; done; "$@"; kill "$0"'
"""The site is ready when nginx listens, so what we become must listen before; it is to end when nginx has ended."""


def main() -> None:
    """Become the server. Raises MissingDependency, ValueError, KeyError."""
    site, _ = read_site(Setup(settings="site.toml"))
    run, port = Path(os.environ["STATEFORK_RUN"]), int(os.environ["PORT"])
    fpm = find_program("php-fpm", *(f"php-fpm8.{minor}" for minor in range(9, -1, -1)), hint=site.install)
    nginx = find_program("nginx", hint=site.install)
    (run / "tmp").mkdir()
    shutil.copy(_PREPENDED, run / "prepend.php")
    told = {**site.environment, **{name: os.environ[name] for name in _TOLD}}
    pool = msgspec.structs.replace(site, environment=told)
    (run / "fpm.conf").write_text(fpm_configuration(pool, run, workers=_WORKERS, socket=_SOCKET))
    (run / "nginx.conf").write_text(nginx_configuration(site, run, port))
    os.chdir(run)
    command = [nginx, "-p", str(run), "-e", "stderr", "-c", str(run / "nginx.conf")]
    subprocess.Popen(["/bin/sh", "-c", _WATCHED, str(os.getpid()), *command])
    root = ["--allow-to-run-as-root"] if os.geteuid() == 0 else []
    os.execv(fpm, [fpm, "--nodaemonize", *root, "--fpm-config", str(run / "fpm.conf")])


def nginx_configuration(site: Site, run: Path, port: int) -> str:
    """Files of the application's package as they are; everything else is PHP's."""
    answer = f"""include /etc/nginx/fastcgi_params;
      fastcgi_param HTTP_HOST $http_host; # Debian's parameters make it of $host, which drops the port
      fastcgi_param SERVER_PORT 80;
      fastcgi_read_timeout 600;
      fastcgi_pass unix:{_SOCKET};"""
    scripts = "".join(
        f"""
    location ^~ {prefix} {{
      {answer}
      fastcgi_param SCRIPT_FILENAME {Path(site.root) / script};
    }}"""
        for prefix, script in site.scripts.items()
    )
    temporary = "".join(
        f"  {kind}_temp_path {run}/tmp;\n" for kind in ("client_body", "fastcgi", "proxy", "uwsgi", "scgi")
    )
    return f"""worker_processes 1;
daemon off;
pid {run / "nginx.pid"};
{"user root root;" if os.geteuid() == 0 else ""}
events {{ worker_connections 512; }}
http {{
  include /etc/nginx/mime.types;
  access_log off;
  server_tokens off;
  client_max_body_size 64m;
  large_client_header_buffers 8 32k;
  fastcgi_buffers 16 32k;
  fastcgi_buffer_size 32k;
{temporary}  server {{
    listen 127.0.0.1:{port};
    root {site.root};
    location / {{ try_files $uri /{site.front}?$query_string; }}{scripts}
    location ~ ^(?<script>.+\\.php)(?<rest>/.*)?$ {{
      {answer}
      fastcgi_param SCRIPT_FILENAME $document_root$script;
      fastcgi_param SCRIPT_NAME $script;
      fastcgi_param PATH_INFO $rest;
    }}
  }}
}}
"""


if __name__ == "__main__":
    main()
