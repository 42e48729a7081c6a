"""Drive an engine over HTTP: one basket, two ways on. Start it with: statefork up CONTRACT --http 8642"""

import sys

from statefork.adapters.interfaces.http.client import Client
from statefork.engine.errors import InvalidAction


def main(url: str, token: str) -> None:
    with Client(url, token=token) as engine:
        engine.create("agent-1", key="agent-1")  # with a key it may be given again
        engine.act("agent-1", {"type": "put", "key": "basket", "value": "tea"})
        ref = engine.snapshot("agent-1")["ref"]
        left, right = engine.fork(ref, n=2)["children"]
        engine.act(left["env"], {"type": "put", "key": "basket", "value": "coffee"})
        for change in engine.diff(left["env"], right["env"])["resources"]["page"]["changes"]:
            print(change["name"], change["before"], "->", change["after"])
        try:
            engine.act("agent-1", {"type": "dance"})
        except InvalidAction as error:  # the same classes as in the engine's own process
            print(error.code, "-", error.hint)
        print("history is clean:", engine.audit()["clean"])


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python http_client.py URL TOKEN")
    main(*sys.argv[1:])
