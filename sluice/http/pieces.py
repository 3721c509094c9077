"""A body as it comes: large pieces as they are, small ones put together, as the objects of many take more than their bytes."""

from __future__ import annotations

SMALL = 4096  # bytes of a piece, below which it is put to the one before it


class Pieces:
    """What has come."""

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        self._pieces: list[bytes | bytearray] = []

    def add(self, piece: bytes) -> None:
        """It comes behind the others."""
        pieces = self._pieces
        if len(piece) >= SMALL or not pieces:
            pieces.append(piece)
            return
        if type(pieces[-1]) is bytes:
            pieces.append(bytearray())
        pieces[-1] += piece

    def take_all(self) -> list[bytes]:
        """All of it as it came; nothing is left."""
        pieces, self._pieces = self._pieces, []
        return [piece if type(piece) is bytes else bytes(piece) for piece in pieces]

    def take(self) -> bytes:
        """All of it, in one copy where it came in several; nothing is left."""
        pieces, self._pieces = self._pieces, []
        if len(pieces) == 1 and type(pieces[0]) is bytes:
            return pieces[0]
        return b"".join(pieces)
