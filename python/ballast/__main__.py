# SPDX-License-Identifier: Apache-2.0
"""Runs Ballast's command line, which a wheel contains: python -m ballast launch JOB."""

import os
import sys


def main() -> None:
    """Becomes the program `ballast` with this process's arguments."""
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "ballast")
    if not os.access(program, os.X_OK):
        sys.exit(f"error: {program}: not an executable file; a wheel made by deploy/wheel.sh has it")
    os.execv(program, [program] + sys.argv[1:])


if __name__ == "__main__":
    main()
