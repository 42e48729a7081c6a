"""What happened: the event vocabulary, its codec, the append-only log and the blobs it points at.

This package imports nothing else of statefork.
"""
