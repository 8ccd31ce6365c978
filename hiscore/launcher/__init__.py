"""Everything around a tritonserver: found, configured, started, watched, drained, and nothing left behind.

`Server` is what ``make serve``, the demo, the tests and the benchmarks share.
"""

from hiscore.launcher.errors import LaunchError
from hiscore.launcher.server import Server

__all__ = ["LaunchError", "Server"]
