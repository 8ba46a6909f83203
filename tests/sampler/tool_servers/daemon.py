"""A classic daemon: fork, new session, fork again, without its parent's descriptors and environment."""

import os
import sys

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.chdir("/")
        os.closerange(0, 256)
        os.execve(sys.executable, [sys.executable, "-S", "-c", "import time; time.sleep(575)", sys.argv[1]], {})
