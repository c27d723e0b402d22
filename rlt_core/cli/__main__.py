"""`python -m rlt_core.cli` is `rlt`."""

from rlt_core.cli import main

raise SystemExit(main())
