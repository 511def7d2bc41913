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
        return _peak(resource.RUSAGE_SELF)

    @property
    def largest_child_bytes(self) -> int:
        """Largest resident set of any of its child processes that has ended, in bytes."""
        return _peak(resource.RUSAGE_CHILDREN)


def _peak(who: int) -> int:
    peak = resource.getrusage(who).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
