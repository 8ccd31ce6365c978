"""Find, configure, start, watch and drain a tritonserver, and leave nothing behind.

``make serve``, the demo, the tests and the benchmarks all start their servers through `Server`.
"""

from hiscore.launcher.errors import LaunchError
from hiscore.launcher.server import Server

__all__ = ["LaunchError", "Server"]
