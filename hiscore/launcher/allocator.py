"""The allocator's settings in the processes of the server and the API: how much freed memory it keeps.

glibc adjusts itself to the largest block that a process has freed so far. Until that was a large one, it returns
every tensor of some 100 KiB to the system, whose pages are cleared and mapped again for the next request. So each
process starts where that adjustment ends.
"""

ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**26)}
"""Variables of the environment, unless the launcher's environment has them."""
