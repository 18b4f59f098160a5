"""`python -m limelight` is the command `limelight`."""

import sys

from limelight.cli import main

sys.exit(main())
