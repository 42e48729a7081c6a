"""A PostgreSQL database as a resource: one resident server with a database per environment, or a server for each."""

from __future__ import annotations

from statefork.adapters.resources.postgres.backend import Server
from statefork.adapters.resources.postgres.choice import SERVER
from statefork.adapters.resources.postgres.configuration import server_settings
from statefork.adapters.resources.postgres.external import ExternalServer
from statefork.adapters.resources.postgres.options import Options
from statefork.adapters.resources.postgres.resource import PostgresResource
from statefork.adapters.resources.postgres.server import Setup
from statefork.adapters.resources.postgres.servers import LentServer, server_at
from statefork.engine.ports import Services

__all__ = ["Options", "PostgresResource", "make"]


def make(name: str, options: Options, services: Services) -> PostgresResource:
    """The resource of one contract entry. Raises ContractError for a connection string that can't be read."""
    server: Server
    if options.external:
        server = ExternalServer(name, options.server_dsn(name), "dsn" if options.dsn else "dsn_variable")
    elif options.server:
        place = services.state / "resources" / options.server / SERVER
        server = LentServer(name, options.server, place, survives_os=options.survives == "os")
    else:
        server = server_at(
            Setup(
                name=name,
                state=services.state,
                journal=services.journal,
                place=services.state / "resources" / name / SERVER,
                settings=server_settings(options),
                reserve=True,
                programs=options.programs,
                accelerate=options.accelerate,
            )
        )
    return PostgresResource(name, options, services, server)
