"""Settings of libraries in the processes of the server and the API.

MALLOC_: how much freed memory the allocator keeps.

glibc adjusts itself to the largest block that a process has freed so far. Until that was a large one, it returns
every tensor of some 100 KiB to the system, whose pages are cleared and mapped again for the next request. So each
process starts where that adjustment ends.

OMP_WAIT_POLICY: a thread that waits for work sleeps, where it would spin for a while. On two cores that nobody
else uses calls take 1.1 to 1.2 times as long, where another process wants one of them half as long
(perf/results/notebook/cpu.md).
"""

LIBRARIES = {
    "MALLOC_MMAP_THRESHOLD_": str(2**25),
    "MALLOC_TRIM_THRESHOLD_": str(2**26),
    "OMP_WAIT_POLICY": "PASSIVE",
}
"""Variables of the environment, unless the launcher's environment has them."""
