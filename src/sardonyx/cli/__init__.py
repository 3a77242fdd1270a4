"""The command line: `__main__` holds the program, every other file one command."""
