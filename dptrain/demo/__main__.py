"""`python -m dptrain.demo` is `dptrain demo`."""

from dptrain.demo import main

raise SystemExit(main())
