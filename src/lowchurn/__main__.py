"""``python -m lowchurn``."""

from lowchurn.cli import main

if __name__ == "__main__":
    main()
