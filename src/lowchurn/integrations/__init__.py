"""Other libraries that people train and release with, one file per neighbour: import the one that you need."""

__all__: list[str] = []
