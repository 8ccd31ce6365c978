"""End a process when the one that started it dies, however it dies: the kernel sees to it.

As a program it runs a command that gets a SIGTERM then, with large stacks, and that may write to a terminal:

usage: python -I -S server/die_with_parent.py PARENT_PID COMMAND [ARGUMENT ...]

That is a program and not a ``preexec_fn``, since running Python between fork and exec is unsafe in a process with
threads. The kernel watches the thread that started us, so that thread has to live as long as the command.
"""

import ctypes
import os
import resource
import signal
import sys

PR_SET_PDEATHSIG = 1
# tritonserver parses a JSON body on the stack of an HTTP thread, whose size is this limit. With the usual 8 MiB, a
# body of 4 MiB crashes the server (triton-inference-server/server#5840), and calls may be larger.
STACK_BYTES = 256 * 2**20


def die_with(parent: int, by: signal.Signals) -> None:
    """Have the kernel signal this process when the thread that started it ends; exit if `parent` is dead already.

    Raises:
        OSError: The kernel refuses.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, by) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    # It may have died before the call above.
    if os.getppid() != parent:
        sys.exit("the parent process is gone")


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    die_with(parent, signal.SIGTERM)
    # A terminal may be set to stop what writes to it from another process group than the one in front.
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_STACK)
    # Set even where it is unlimited: threads would then get 2 MiB.
    stack = STACK_BYTES if most == resource.RLIM_INFINITY else min(STACK_BYTES, most)
    resource.setrlimit(resource.RLIMIT_STACK, (stack, most))
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
