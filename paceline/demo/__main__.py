"""``python -m paceline.demo``."""

from __future__ import annotations

import sys

from paceline.demo.main import main

sys.exit(main())
