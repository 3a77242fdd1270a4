"""`python -m sardonyx` is the command `sardonyx`."""

from sardonyx.cli.__main__ import main

if __name__ == "__main__":
    main()
