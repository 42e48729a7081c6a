"""The Model Context Protocol, twice: a server for an agent in one environment, and another one for who runs agents."""
