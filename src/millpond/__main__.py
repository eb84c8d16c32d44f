"""`python -m millpond`: the command line."""

from millpond.cli.main import main

if __name__ == "__main__":
    main()
