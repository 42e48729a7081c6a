"""The configurations of php-fpm and nginx: one pool, one server, all of it in a directory of the server's own."""

from __future__ import annotations

import os
from pathlib import Path

from statefork.adapters.resources.web.behind.site import Site

HOOKS = Path(__file__).with_name("php")
_APC_MIB = 64  # for all environments: what does not fit is made anew
_OPCACHE_MIB = 128
_IDLE_S = 60  # after which a worker that has nothing to do ends
_UPLOAD_MIB_MAX = 64


def prepend(run: Path, key: bytes) -> str:
    """The script before every script. The control script is the server's own, and belongs to no environment."""
    return f"""<?php
require_once '{HOOKS / "bound.php"}';
( static function (): void {{
	$header = $_SERVER['STATEFORK_BOUND'] ?? '';
	unset( $_SERVER['STATEFORK_BOUND'], $_SERVER['HTTP_STATEFORK_BOUND'] );
	$key = hex2bin( '{key.hex()}' );
	if ( $_SERVER['SCRIPT_FILENAME'] === '{HOOKS / "control.php"}' ) {{
		[ $text, $mac ] = explode( '.', $header . '.', 3 );
		if ( hash_equals( hash_hmac( 'sha256', $text, $key ), $mac ) ) {{
			return;
		}}
	}}
	Statefork\\Bound::enter( $header, $key, '{run}' );
}} )();
"""


def fpm_configuration(site: Site, run: Path, *, workers: int, socket: Path | None = None) -> str:
    """As many workers as there may be requests, started when they are needed. ``socket``: instead of one in ``run``."""
    values = {
        "auto_prepend_file": str(run / "prepend.php"),
        "upload_tmp_dir": str(run / "tmp"),
        "sys_temp_dir": str(run / "tmp"),
        "session.save_path": str(run / "nowhere"),  # sessions in files are in no store: an application that tries fails
        "apc.shm_size": f"{_APC_MIB}M",
        "opcache.memory_consumption": str(_OPCACHE_MIB),
        "memory_limit": "256M",
        "upload_max_filesize": f"{_UPLOAD_MIB_MAX}M",
        "post_max_size": f"{_UPLOAD_MIB_MAX}M",
        "pgsql.allow_persistent": "0",  # a connection must not outlive its request
        **site.php,
    }
    lines = [f"php_admin_value[{name}] = {value}" for name, value in values.items()]
    lines += [f'env[{name}] = "{value}"' for name, value in site.environment.items()]
    return f"""[global]
error_log = /proc/self/fd/2
daemonize = no
[site]
listen = {socket or run / "fpm.sock"}
pm = ondemand
pm.max_children = {workers}
pm.process_idle_timeout = {_IDLE_S}s
catch_workers_output = yes
decorate_workers_output = no
clear_env = yes
security.limit_extensions = .php
""" + "".join(f"{line}\n" for line in lines)


def nginx_configuration(site: Site, run: Path, *, ready: str, control: str) -> str:
    """Files of the application's package as they are; everything else is PHP's, and nothing is anybody's."""
    answer = f"""include /etc/nginx/fastcgi_params;
      fastcgi_param HTTP_HOST $http_host; # Debian's parameters make it of $host, which drops the port
      fastcgi_param REMOTE_ADDR 127.0.0.1; # a socket has neither address nor port
      fastcgi_param SERVER_ADDR 127.0.0.1;
      fastcgi_param SERVER_PORT 80;
      fastcgi_param STATEFORK_BOUND $http_statefork_bound;
      fastcgi_param HTTP_STATEFORK_BOUND "";
      fastcgi_read_timeout 600;
      fastcgi_pass unix:{run / "fpm.sock"};"""
    scripts = "".join(
        f"""
    location ^~ {prefix} {{
      {answer}
      fastcgi_param SCRIPT_FILENAME {script};
    }}"""
        for prefix, script in {
            ready: str(HOOKS / "ready.php"),
            control: str(HOOKS / "control.php"),
            **{prefix: str(Path(site.root) / script) for prefix, script in site.scripts.items()},
        }.items()
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
  client_max_body_size {_UPLOAD_MIB_MAX}m;
  large_client_header_buffers 8 32k;
  fastcgi_buffers 16 32k;
  fastcgi_buffer_size 32k;
{temporary}  server {{
    listen unix:{run / "nginx.sock"};
    root {site.root};
    if ($http_statefork_bound = "") {{ return 421; }}
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
