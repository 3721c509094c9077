"""Object code that LLVM made, put into the memory of this process without LLVM.

LLVM's library takes 40 MB and 70 ms to be there. What it does to code that is made is little: the sections go into memory, what
the code calls is written into it as addresses, and the pages with instructions become executable. numba has its code made for any
distance between a caller and what it calls, so that on x86-64 every address is a whole one (``R_X86_64_64``): the only kind that is
written here. Code of another processor, or with addresses of another kind, is not placed.

Reference: System V Application Binary Interface, and its AMD64 Architecture Processor Supplement, chapter 4: object files.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

_X86_64 = 62
_PROGRAM, _SYMBOLS, _ADDENDS, _NO_BITS, _NO_ADDENDS = 1, 2, 4, 8, 9  # kinds of sections
_LOADED, _INSTRUCTIONS, _OF_A_THREAD = 0x2, 0x4, 0x400  # their flags
_UNDEFINED, _ABSOLUTE, _COMMON = 0, 0xFFF1, 0xFFF2  # sections of symbols that lie in none
_WHOLE_ADDRESS = 1  # the only kind of relocation here


class _Section(NamedTuple):
    """A header, as it is in the file."""

    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry: int


class _Symbol(NamedTuple):
    name: str
    section: int
    value: int  # in its section; of one that is common its alignment
    size: int


class _Layout(NamedTuple):
    """Where sections and common symbols lie, by number, from the beginning of the memory on; bytes of instructions, and of all."""

    sections: dict[int, int]
    common: dict[int, int]
    instructions: int
    size: int


class ObjectFile:
    """An object of ELF with 64 bits, least byte first; raises ``ValueError`` where it is none."""

    def __init__(self, code: bytes) -> None:
        if code[:6] != b"\x7fELF\x02\x01":
            raise ValueError("object code of another form than ELF")
        self.code = code
        (self.machine,) = struct.unpack_from("<H", code, 0x12)
        (start,) = struct.unpack_from("<Q", code, 0x28)
        size, count = struct.unpack_from("<HH", code, 0x3A)
        self.sections = [_Section._make(struct.unpack_from("<IIQQQQIIQQ", code, start + number * size)) for number in range(count)]
        self.symbols = [symbol for section in self.sections if section.kind == _SYMBOLS for symbol in self._symbols(section)]

    def _symbols(self, section: _Section) -> Iterator[_Symbol]:
        names = self.sections[section.link].offset
        for name, _, _, within, value, size in struct.iter_unpack("<IBBHQQ", self._content(section)):
            end = self.code.index(b"\0", names + name)
            yield _Symbol(self.code[names + name : end].decode(), within, value, size)

    def _content(self, section: _Section) -> bytes:
        return self.code[section.offset : section.offset + section.size]

    @property
    def undefined(self) -> list[str]:
        """The names of what it takes from others."""
        return [symbol.name for symbol in self.symbols if symbol.section == _UNDEFINED and symbol.name]

    def place(self, address_of: Callable[[str], int | None]) -> PlacedCode | None:
        """Put it into memory, with what it takes from others at these addresses; ``None`` where that cannot be done here."""
        if self.machine != _X86_64 or any(section.flags & _OF_A_THREAD for section in self._loaded.values()):
            return None
        layout = self._laid_out()
        memory = mmap.mmap(-1, max(layout.size, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for number, section in self._loaded.items():
            if section.kind == _PROGRAM:
                memory[layout.sections[number] : layout.sections[number] + section.size] = self._content(section)
        addresses = [self._address(number, layout, base, address_of) for number in range(len(self.symbols))]
        for section in self.sections:
            if section.kind == _NO_ADDENDS and section.info in layout.sections:
                return None
            if section.kind != _ADDENDS or section.info not in layout.sections:
                continue
            for offset, kind, symbol_number, addend in struct.iter_unpack("<QIIq", self._content(section)):
                address = addresses[symbol_number]
                if kind != _WHOLE_ADDRESS or address is None:
                    return None
                struct.pack_into("<Q", memory, layout.sections[section.info] + offset, (address + addend) % 2**64)
        if layout.instructions and not _made_executable(base, layout.instructions):
            return None
        named = zip(self.symbols, addresses, strict=True)
        return PlacedCode(memory, {symbol.name: at for symbol, at in named if at is not None and symbol.section != _UNDEFINED})

    @cached_property
    def _loaded(self) -> dict[int, _Section]:
        """The sections that go into memory, by number."""
        loaded = (each for each in enumerate(self.sections) if each[1].flags & _LOADED and each[1].kind in (_PROGRAM, _NO_BITS))
        return dict(loaded)

    def _laid_out(self) -> _Layout:
        """Instructions first, on pages of their own, as a page is either written or run."""
        sections, common, end, instructions = {}, {}, 0, 0
        for executable in (True, False):
            for number, section in self._loaded.items():
                if bool(section.flags & _INSTRUCTIONS) == executable:
                    sections[number] = end = _aligned(end, section.alignment)
                    end += section.size
            if executable:
                end = instructions = _aligned(end, mmap.PAGESIZE)
        for number, symbol in enumerate(self.symbols):
            if symbol.section == _COMMON:
                common[number] = end = _aligned(end, symbol.value)
                end += symbol.size
        return _Layout(sections, common, instructions, end)

    def _address(self, number: int, layout: _Layout, base: int, address_of: Callable[[str], int | None]) -> int | None:
        """Of a symbol; ``None`` where it is nowhere."""
        symbol = self.symbols[number]
        if symbol.section == _UNDEFINED:
            return address_of(symbol.name) if symbol.name else 0
        if symbol.section == _COMMON:
            return base + layout.common[number]
        if symbol.section == _ABSOLUTE:
            return symbol.value
        return base + layout.sections[symbol.section] + symbol.value if symbol.section in layout.sections else None


class PlacedCode(NamedTuple):
    """Code that can be called for as long as its memory is held, and where its symbols are."""

    memory: Any  # held for as long as it may be called
    addresses: dict[str, int]


def _aligned(at: int, alignment: int) -> int:
    return -(-at // max(alignment, 1)) * max(alignment, 1)


def _made_executable(address: int, size: int) -> bool:
    protect = ctypes.CDLL(None).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return bool(protect(address, size, mmap.PROT_READ | mmap.PROT_EXEC) == 0)
