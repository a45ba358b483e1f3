"""``python -m deployments.models SOURCE [BASE]``: prepares a model on this machine and prints its folder."""

import sys
from pathlib import Path

from deployments.models import ModelSourceError, resolve_model

if __name__ == "__main__":
    base = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    try:
        print(resolve_model(sys.argv[1], base=base))
    except ModelSourceError as error:
        sys.exit(str(error))
