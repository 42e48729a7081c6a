"""An episode with OpenEnv's own client, of openenv-core. Serve it with: statefork up CONTRACT --openenv 8643"""

import asyncio
import sys

from openenv.core import GenericEnvClient


async def main(url: str) -> None:
    async with GenericEnvClient(base_url=url) as env:
        first = await env.reset()  # an environment of this client's own
        print("begins with:", first.observation["value"])
        await env.step({"type": "put", "key": "basket", "value": "tea"})
        seen = await env.step({"type": "get", "key": "basket"})
        print("basket:", seen.observation["value"], "- done:", seen.done)
        try:
            await env.step({"type": "dance"})
        except RuntimeError as error:  # what the world refuses ends nothing
            print(error)
        print("steps:", (await env.state())["step_count"])
        again = await env.reset()  # the next episode knows nothing of it
        print("again:", again.observation["value"])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python openenv_client.py URL")
    asyncio.run(main(*sys.argv[1:]))
