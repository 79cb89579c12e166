"""`python -m dptrain` is the `dptrain` command."""

from dptrain.cli import main

if __name__ == "__main__":
    main()
