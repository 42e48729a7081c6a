"""An agent's tools over MCP, with the protocol's own client. Start an engine first: statefork up CONTRACT"""

import asyncio
import sys

from mcp import Client, StdioServerParameters


async def main(env: str, state: str) -> None:
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "statefork", "mcp", "agent", env, "--state", state]
    )
    async with Client(server) as agent:
        print("tools:", ", ".join(tool.name for tool in (await agent.list_tools()).tools))
        await agent.call_tool("act", {"action": {"type": "put", "key": "basket", "value": "tea"}})
        seen = await agent.call_tool("observe", {})
        print("seen:", seen.structured_content["value"])
        refused = await agent.call_tool("act", {"action": {"type": "dance"}})
        print("refused:", refused.is_error, refused.structured_content["code"])


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
