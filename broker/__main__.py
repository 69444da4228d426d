"""The console script `partibus`, which is also `python -m broker`."""

import sys


def main() -> None:
    """Run the command line."""
    if sys.argv[1:2] == ["serve"]:
        from broker.cli.huge_pages import start_again_asking

        start_again_asking()  # before anything else takes time
    from broker.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
