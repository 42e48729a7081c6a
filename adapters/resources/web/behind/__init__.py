"""Applications in another process than the server: it keeps the tickets and the gate, they are told whom to serve."""
