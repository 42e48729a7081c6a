"""An agent's tools over MCP, with the protocol's own client. Start an engine first: statefork up CONTRACT"""

import asyncio
import sys

from mcp import Client, StdioServerParameters


async def main(env: str, state: str) -> str | None:
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "statefork", "mcp", "agent", env, "--state", state]
    )
    async with Client(server) as agent:
        print("tools:", ", ".join(tool.name for tool in (await agent.list_tools()).tools))
        done = await agent.call_tool("act", {"action": {"type": "put", "key": "basket", "value": "tea"}})
        if done.is_error:  # also where no engine runs, or there is no such environment
            return done.content[0].text
        seen = await agent.call_tool("observe", {})
        print("seen:", seen.structured_content["value"])
        refused = await agent.call_tool("act", {"action": {"type": "dance"}})
        print("refused:", refused.is_error, refused.structured_content["code"])
    return None


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python mcp_agent.py ENVIRONMENT STATE_DIRECTORY")
    sys.exit(asyncio.run(main(*sys.argv[1:])))
