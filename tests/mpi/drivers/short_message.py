"""collemu, with the last byte of every message of rank 1 lost."""

from collemu.cli.main import console
from collemu.ranks.transport import MpiTransport

send = MpiTransport.send


def short_send(self, place, buffer, destination, channel):
    send(self, place, buffer[:-1] if self._comm.rank == 1 else buffer, destination, channel)


MpiTransport.send = short_send
console()
