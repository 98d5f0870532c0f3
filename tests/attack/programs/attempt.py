"""Run the Python source in the first argument; print OK and what it printed, or the name of its OSError's errno.

The source finds the usual modules imported, `libc` with errno, and `checked`, which raises for a result of -1.
"""

import contextlib
import ctypes
import errno
import fcntl
import io
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import termios
import time

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def checked(result: int) -> int:
    """Return a system call's result, or raise its error."""
    if result == -1:
        raise OSError(ctypes.get_errno(), "system call")
    return result


USED = (fcntl, os, resource, signal, socket, struct, subprocess, termios, time)
said = io.StringIO()
try:
    with contextlib.redirect_stdout(said):
        exec(compile(sys.argv.pop(1), "probe", "exec"))
except OSError as error:
    sys.stdout.write(errno.errorcode.get(error.errno or 0, str(error)))
else:
    sys.stdout.write(f"OK {said.getvalue()}".strip())
