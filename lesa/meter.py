"""How long a piece of work took and how much memory it needed."""

import resource
import sys
import time


class Meter:
    """Time since it was made, and the process's peak memory so far."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        """Wall-clock seconds since the meter was made."""
        return time.monotonic() - self._start

    @property
    def peak_memory_bytes(self) -> int:
        """Largest resident set of this process since it started, in bytes."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
