"""``python -m bayesdp`` runs the command ``bayesdp``."""

from bayesdp.cli import main

if __name__ == "__main__":
    main()
