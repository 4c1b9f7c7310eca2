"""Entry point of the `launcher` command and of `python -m launcher`."""

import sys

from launcher.cli.main import run


def main() -> None:
    """Run the command line and leave with its exit code."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
