"""`python -m recoup._cli` is the `recoup` command."""

import sys

from recoup._cli import main

sys.exit(main())
