"""`python -m tandem`: the same as `tandem`."""

from tandem import main

if __name__ == "__main__":
    main()
