"""`python -m dilocoxd` is the `dilocoxd` command."""

from dilocoxd.cli.main import main

if __name__ == "__main__":
    main()
