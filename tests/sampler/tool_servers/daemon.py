"""A daemon as they are written: fork, a session of its own, fork again, no descriptor and no environment of its parent's."""

import os
import sys

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.chdir("/")
        os.closerange(0, 256)
        os.execve(sys.executable, [sys.executable, "-S", "-c", "import time; time.sleep(575)", sys.argv[1]], {})
