"""Episodes for agents, in OpenEnv's protocol: what a client of ``openenv-core`` reaches, and nothing else."""
