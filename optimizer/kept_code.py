"""Machine code that numba made, called by processes that do not import numba.

numba takes half a second and 100 MB to be ready to call the first function that it kept, as it first learns all that it could
compile. To run what is compiled takes less: the object code, put into memory (``placed_code``), and the small runtime that arrays
are allocated by. So beside what numba keeps for itself stands a file for each function, with the object code for every kind of
arguments it was called with. What is kept is numba's own: the same instructions, entered by the same wrapper, which reads the
arguments and raises what the code raises (to raise, numba is imported).

A kind of arguments says at least as much as numba's types do. A file holds for one version of our functions, of numba, llvmlite and
Python, and for one processor; of another it is as if it were not there. So it is where anything that the code calls is not found,
or where the object code is of another form than ELF: numba then does what it did.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import hashlib
import importlib.machinery
import importlib.util
import os
import pickle
import platform
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple, cast

import numpy as np

from sluice.optimizer.placed_code import ObjectFile, PlacedCode

Kinds = tuple[Any, ...]

_SCALARS = {bool: "bool", float: "float", complex: "complex", type(None): "none"}
_BY_ROWS, _BY_COLUMNS, _OWN_DATA = 0x1, 0x2, 0x4  # flags of an array, of which numba looks at the second where the first is not
_LARGEST = 2**63  # integers from which on are of another type
_SEAL = 32  # bytes
_PROCESSORS = "/proc/cpuinfo"
_OF_A_PROCESSOR = {"vendor_id", "cpu family", "model"} | {"CPU implementer", "CPU part", "CPU variant", "Features"}
"""Lines of it, of x86 and of Arm, that tell for which processor LLVM makes code; the ``flags`` of x86 do, too."""
_INSTRUCTIONS = (
    *("3dnow", "abm", "adx", "aes", "amx", "apx", "avx", "bmi", "cldemote", "clflushopt", "clwb", "clzero", "cmov", "cmpccxadd"),
    *("cx16", "enqcmd", "f16c", "fma", "fsgsbase", "fxsr", "gfni", "hle", "invpcid", "lahf", "lm", "mmx", "movbe", "movdir"),
    *("mwaitx", "pclmul", "pku", "pni", "popcnt", "prefetch", "ptwrite", "rd", "rtm", "serialize", "sha", "sm3", "sm4", "sse"),
    *("ssse", "tbm", "uintr", "vaes", "vpclmul", "waitpkg", "wbnoinvd", "xop", "xsave"),
)
"""With which those begin that LLVM asks about. Of the others each version of a kernel has more."""


class ObjectCode(NamedTuple):
    """A function for one kind of arguments.

    ``wrapper`` is the symbol of what Python calls, ``environment`` that of the function's own environment, one of those in which
    its code, and what it was made of, look for objects of Python (``constants``); ``undefined`` is what others must have.
    """

    code: bytes
    wrapper: str
    environment: str
    constants: dict[str, list[Any]]
    undefined: list[str]


class KeptCode:
    """What is kept of one function."""

    def __init__(self, function: FunctionType, stamp: str) -> None:
        self._function, self._stamp = function, stamp
        name = f"{function.__module__.rpartition('.')[2]}.{function.__qualname__}-{function.__code__.co_firstlineno}.code"
        self._files = [place / name.replace("<", "").replace(">", "") for place in _places(function.__code__.co_filename)]

    def find(self, kinds: Kinds, without_llvm: bool = False) -> Callable[..., Any] | None:
        """The function for arguments of these kinds, or ``None`` where it is not kept, or not for this machine."""
        made = next((kept[kinds] for kept in map(self._read, self._files) if kinds in kept), None)
        return None if made is None else _linked(self._function, made, without_llvm)

    def keep(self, kinds: Kinds, dispatcher: Any, types: tuple[Any, ...]) -> None:
        """Keep what numba's ``dispatcher`` has for arguments of these kinds, its ``types``, if it can be called without numba."""
        try:
            made = _object_code(dispatcher, types)
            pickle.dumps(made)
        except (AttributeError, TypeError, ValueError, pickle.PicklingError, struct.error):
            return  # of a version that says it otherwise, or of another form
        for file in self._files:
            with contextlib.suppress(OSError):
                file.parent.mkdir(parents=True, exist_ok=True)
                _write(file, pickle.dumps((self._stamp, self._read(file) | {kinds: made})))
                return

    def _read(self, file: Path) -> dict[Kinds, ObjectCode]:
        """What a file has, by kinds of arguments; nothing where there is none, it is torn, or it is of another version."""
        try:
            seal, content = (whole := file.read_bytes())[:_SEAL], whole[_SEAL:]
            stamp, kept = pickle.loads(content) if seal == _seal(content) else ("", {})
        except Exception:  # whatever a file of others makes of it
            return {}
        return dict(kept) if stamp == self._stamp else {}


def kinds_of(values: Sequence[Any]) -> Kinds | None:
    """What the compiled code depends on of its arguments; ``None`` where it is not told from the values alone."""
    kinds = tuple(map(_kind, values))
    return None if None in kinds else kinds


def _kind(value: Any) -> Any:
    of = type(value)
    if of is np.ndarray:
        dtype = value.dtype  # itself, as to put it into words takes longer than all else here
        flags = value.flags.num & ~_OWN_DATA
        flags = flags & ~_BY_COLUMNS if flags & _BY_ROWS else flags  # of one row it is both
        return (dtype, value.ndim, flags) if dtype.kind in "biufc" else None
    if of is int:
        return "int" if -_LARGEST <= value < _LARGEST else None
    if of in _SCALARS:
        return _SCALARS[of]
    if isinstance(value, tuple):
        parts = kinds_of(value)
        return None if parts is None else (of.__module__, of.__qualname__, *parts)
    if of is np.random.Generator:
        return "generator"
    return ("scalar", value.dtype) if isinstance(value, np.number | np.bool_) else None


def _seal(content: bytes) -> bytes:
    """What comes before it in a file: a disk may have lost a part of it, and instructions are run as they are."""
    return hashlib.sha256(content).digest()


def _write(file: Path, content: bytes) -> None:
    """Whole, or not at all, as others read and write it meanwhile."""
    with tempfile.NamedTemporaryFile(dir=file.parent, prefix=file.name, delete=False) as whole:
        whole.write(_seal(content) + content)
    os.replace(whole.name, file)


def _places(source: str) -> Iterator[Path]:
    """Folders in which code may be kept, in the order of numba's."""
    own = os.environ.get("NUMBA_CACHE_DIR")
    inside = hashlib.sha256(str(Path(source).parent).encode()).hexdigest()[:16]
    if own:
        yield Path(own) / inside
    elif Path(source).is_file():
        yield Path(source).parent / "__pycache__"
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sluice" / inside


def _object_code(dispatcher: Any, types: tuple[Any, ...]) -> ObjectCode:
    """What numba kept for arguments of these types; raises ``ValueError`` where it cannot be linked without numba."""
    cache = dispatcher._cache
    kept = cache._cache_file.load(cache._index_key(types, dispatcher.targetctx.codegen()))
    if kept is None:
        raise ValueError("numba keeps nothing here")
    (_, form, (code, _)), told, own, _, in_python, lifted, _, reloaded, others = kept
    if form != "object" or in_python or lifted or reloaded:
        raise ValueError(form)
    environments = {of.env_name: list(of.consts) for of in (own, *others)}
    return ObjectCode(code, told.llvm_cpython_wrapper_name, own.env_name, environments, ObjectFile(code).undefined)


def _linked(function: FunctionType, made: ObjectCode, without_llvm: bool) -> Callable[..., Any] | None:
    """The function, if all that it takes from others is there."""
    if any(_address_of(symbol) is None for symbol in made.undefined):
        return None
    placed = ObjectFile(made.code).place(_address_of)
    if placed is None:
        if without_llvm:
            return None
        placed = _placed_by_llvm(made)
    extension, module = _extensions().functions, sys.modules[function.__module__]
    environments = {}
    for symbol, constants in made.constants.items():
        environment = extension.Environment(module.__dict__)
        environment.consts[:] = constants
        environments[symbol] = environment
        if address := placed.addresses.get(symbol):
            ctypes.c_void_p.from_address(address).value = id(environment)
    own = environments[made.environment]
    held = (placed.memory, *environments.values())
    doc, entry = function.__doc__ or "", placed.addresses[made.wrapper]
    called: Callable[..., Any] = extension.make_function(module, function.__name__, doc, entry, own, held)
    return called


def _placed_by_llvm(made: ObjectCode) -> PlacedCode:
    """Of code for which ``placed_code`` cannot: LLVM's linker, which ends the process where a symbol is not there."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    for symbol in made.undefined:
        llvm.add_symbol(symbol, cast(int, _address_of(symbol)))
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)  # one each, as names within one must differ
    engine.add_object_file(llvm.ObjectFileRef.from_data(made.code))
    engine.finalize_object()
    addresses = {symbol: engine.get_global_value_address(symbol) for symbol in made.constants}
    return PlacedCode(engine, addresses | {made.wrapper: engine.get_function_address(made.wrapper)})


class _Extensions(NamedTuple):
    """numba's, that its code calls: what makes functions, and where the symbols of all of them are."""

    functions: Any
    addresses: dict[str, int]


@cache
def _extensions() -> _Extensions:
    """Loaded without numba itself."""
    functions, helpers, arrays = map(_extension, ("_dynfunc", "_helperlib", "core.runtime._nrt_python"))
    addresses = {}
    for prefix, extension in (("numba_", helpers), ("numba_", functions), ("NRT_", arrays)):
        for name, address in extension.c_helpers.items():
            addresses[name if prefix == "NRT_" and name.startswith("_") else prefix + name] = address
    for named in vars(builtins).values():
        if isinstance(named, type) and issubclass(named, BaseException):
            addresses[f"PyExc_{named.__name__}"] = id(named)
    addresses["_Py_NoneStruct"] = id(None)
    addresses["numba_unpickle"] = cast(int, ctypes.cast(_UNPICKLE, ctypes.c_void_p).value)  # in the place of numba's
    return _Extensions(functions, addresses)


@cache
def _address_of(symbol: str) -> int | None:
    """Where one is: numba's, or what Python and the libraries that it has loaded bring."""
    if (address := _extensions().addresses.get(symbol)) is not None:
        return address
    try:
        return ctypes.cast(getattr(ctypes.CDLL(None), symbol), ctypes.c_void_p).value
    except AttributeError:
        return None


@cache
def _unpickled(data: bytes) -> Any:
    return pickle.loads(data)


def _object_at(data: int, length: int, hashed: int) -> Any:
    """The object that code asks for: the class of an array or a record that it returns. numba's own function asks numba."""
    return _unpickled(ctypes.string_at(data, length))


_UNPICKLE = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)(_object_at)


def _extension(name: str) -> Any:
    """One of numba's, by its file: to import it by its name is to import numba. It is left for numba to import as well."""
    folder, _, stem = name.replace(".", "/").rpartition("/")
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        path = _numba() / folder / (stem + suffix)
        if path.exists():
            loader = importlib.machinery.ExtensionFileLoader(f"numba.{name}", str(path))
            spec = importlib.util.spec_from_file_location(loader.name, path, loader=loader)
            assert spec is not None
            module = importlib.util.module_from_spec(spec)
            loader.exec_module(module)
            return module
    raise ImportError(name)


def _numba() -> Path:
    """The folder of numba."""
    spec = importlib.util.find_spec("numba")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("numba", name="numba")
    return Path(spec.origin).parent


@cache
def machine_stamp() -> str:
    """Another one for another numba, llvmlite, Python, processor or level of optimisation."""
    from llvmlite import __version__ as llvmlite_version

    numba_version = (_numba() / "_version.py").read_bytes()
    parts = (numba_version, llvmlite_version, platform.python_version(), _processor(), os.environ.get("NUMBA_OPT", ""))
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _processor() -> str:
    """Another one where LLVM makes other code; its own words where the system does not tell."""
    try:
        with open(_PROCESSORS, encoding="utf-8", errors="replace") as cores:
            first = cores.read(16_384).partition("\n\n")[0]
    except OSError:
        first = ""
    told = []
    for line in first.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in _OF_A_PROCESSOR:
            told.append(line)
        elif name.strip() == "flags":
            told.append(" ".join(flag for flag in value.split() if flag.startswith(_INSTRUCTIONS)))
    if told:
        return "\n".join([platform.machine(), *told])
    import llvmlite.binding as llvm

    return "\n".join((llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()))
