"""`sluice new`: a folder with a model, its test, its sample request and its settings, which pass as they are."""

from __future__ import annotations

import keyword
import re
from pathlib import Path

from sluice.batching.errors import InvalidInput, require

FILES = Path(__file__).with_name("layout")
"""A file for each of the project's, with @NAME@ and @CLASS@ to fill in; `dot` stands for the first dot of a name."""

_TAKEN = ("ItemError", "Path")  # what the model imports, and may


def lay_out(name: str, parent: Path) -> list[Path]:
    """Write the project ``name`` into a new folder of that name below ``parent``.

    Parameters
    ----------
    name : str
        What the model answers to, and the folder: words of a-z and 0-9 with dashes between, at most 48 characters (the names of
        the functions are made of it).

    Returns
    -------
    files : list of Path
        What was written.

    Raises
    ------
    InvalidInput
        ``name`` is none, there is something of that name, or nothing can be written there.
    """
    class_name = name_of_class(name)
    folder = parent / name
    try:
        folder.mkdir(parents=True)
        written = []
        for file in sorted(FILES.iterdir()):
            text = file.read_text(encoding="utf-8").replace("@NAME@", name).replace("@CLASS@", class_name)
            target = folder / re.sub("^dot", ".", file.name.removesuffix(".in"))
            target.write_text(text, encoding="utf-8")
            written.append(target)
    except FileExistsError:
        raise InvalidInput("NAME", name, f"the name of no folder yet: {folder} is there") from None
    except OSError as error:
        raise InvalidInput("--dir", str(parent), f"a folder that can be written ({error.strerror})") from None
    return written


def name_of_class(name: str) -> str:
    """``text-encoder`` is ``TextEncoder``; raises ``InvalidInput`` where no class can have the name."""
    allowed = "words of a-z and 0-9 with dashes between, the first character a letter, at most 48 characters, such as text-encoder"
    require(re.fullmatch(r"(?=.{1,48}\Z)[a-z][a-z0-9]*(-[a-z0-9]+)*", name) is not None, "NAME", name, allowed)
    class_name = "".join(word.capitalize() for word in name.split("-"))
    taken = keyword.iskeyword(class_name) or class_name in _TAKEN
    require(not taken, "NAME", name, f"a name whose class is not {class_name}, which is taken")
    return class_name
