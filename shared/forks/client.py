"""Stands for an agent's script that runs as a fork: `python -I -S client.py SOCKET SCRIPT|-m MODULE ARGUMENT...`

It hands its environment, directory and standard streams over, waits, and ends as the script did. If it is told to end, or
killed, the script's processes are ended.
"""

import json
import os
import signal
import socket
import struct
import sys
from types import FrameType

HEADER = struct.Struct("!I")
STATUS = struct.Struct("!i")


def main() -> None:
    path, *arguments = sys.argv[1:]
    connection = socket.socket(socket.AF_UNIX)
    directory = os.getcwd()
    os.chdir(os.path.dirname(path))  # a socket's path has at most 107 bytes
    connection.connect(os.path.basename(path))
    os.chdir(directory)

    def leave(number: int, frame: FrameType | None) -> None:
        connection.shutdown(socket.SHUT_WR)  # the status follows when all of its processes have ended

    signal.signal(signal.SIGTERM, leave)
    request = {"arguments": arguments, "environment": dict(os.environ), "directory": directory}
    body = json.dumps(request).encode()
    socket.send_fds(connection, [HEADER.pack(len(body))], [0, 1, 2])
    connection.sendall(body)
    null = os.open(os.devnull, os.O_RDWR)
    for own in (0, 1):  # only the script holds them, so the sampler sees when it closes its stdout
        os.dup2(null, own)
    answer = connection.recv(STATUS.size)
    if not answer:
        sys.exit("the process that has the agent's packages loaded has ended")
    (status,) = STATUS.unpack(answer)
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


if __name__ == "__main__":
    main()
