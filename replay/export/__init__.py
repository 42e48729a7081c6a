"""An environment as one file that is carried to another machine: written, verified, and taken in there."""
