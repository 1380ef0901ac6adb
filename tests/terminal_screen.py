"""Terminal screen for programs that draw on a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios


class Screen:
    """A terminal of 24 lines with a program in it."""

    def __init__(self, command, env, folder=None, columns=80):
        self.ours, self._theirs = pty.openpty()
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self._before = termios.tcgetattr(self._theirs)
        self.process = subprocess.Popen(
            command, stdin=self._theirs, stdout=self._theirs, stderr=self._theirs,
            env=env | {"TERM": "xterm-256color"}, cwd=folder, start_new_session=True,
        )  # fmt: skip
        self._bytes, self.said = b"", ""

    def read(self):
        """What it has said so far."""
        poll = select.poll()  # select() knows no descriptor above 1023
        poll.register(self.ours, select.POLLIN)
        while any(event & select.POLLIN for _, event in poll.poll(50)):
            self._bytes += os.read(self.ours, 1 << 16)
        self.said = self._bytes.decode(errors="replace")
        return self.said

    def read_to_end(self):
        """All that it says until it ends."""
        while self.process.poll() is None:
            self.read()
        return self.read()

    @property
    def is_as_before(self):
        """Whether the terminal's modes are what they were."""
        return termios.tcgetattr(self._theirs) == self._before

    def close(self):
        os.close(self.ours)
        os.close(self._theirs)
