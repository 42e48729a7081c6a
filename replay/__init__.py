"""What the past is good for: rebuilding, re-executing, comparing and auditing it."""
