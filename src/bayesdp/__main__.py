"""``python -m bayesdp``: the same as the command ``bayesdp``."""

from bayesdp.cli import main

if __name__ == "__main__":
    main()
