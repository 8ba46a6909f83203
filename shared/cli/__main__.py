"""`python -m shared.cli`: the same as `tandem`."""

from shared.cli import main

if __name__ == "__main__":
    main()
