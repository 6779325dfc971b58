# SPDX-License-Identifier: Apache-2.0
"""Named things that register themselves: a new one is one new file with one decorator."""

from __future__ import annotations

import importlib
import pkgutil
from importlib.util import find_spec
from typing import TYPE_CHECKING, Generic, TypeVar

from railweave.fabric.errors import InputError, RailweaveError, nearest_name

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Registry"]

Thing = TypeVar("Thing")


class Registry(Generic[Thing]):
    """A table from names to things, filled by the modules of one package.

    Parameters
    ----------
    what
        What the things are, in messages: ``topology kind``.
    package
        Package or packages whose modules are imported at a look-up, so that their decorators run:
        the module that bears the name (with underscores for dashes), and where that brings
        nothing, all of them but those whose names begin with an underscore.

    Examples
    --------
    >>> shapes: Registry[int] = Registry("shape")
    >>> _ = shapes.add("triangle", 3)
    >>> shapes.get("triangle"), shapes.names()
    (3, ['triangle'])
    """

    def __init__(self, what: str, *, package: str | tuple[str, ...] = ()) -> None:
        self.what = what
        # Those not imported as a whole yet.
        self._packages = (package,) if isinstance(package, str) else package
        self._things: dict[str, Thing] = {}

    def add(self, name: str, thing: Thing) -> Thing:
        """Register ``thing`` under ``name``; a name can be taken only once."""
        if self._things.get(name, thing) is not thing:
            raise RailweaveError(f"two things are called {self.what} '{name}'")
        self._things[name] = thing
        return thing

    def __call__(self, name: str) -> Callable[[Thing], Thing]:
        """Return the decorator that registers what it decorates under ``name``."""
        return lambda thing: self.add(name, thing)

    def get(self, name: str) -> Thing:
        """Return the thing of that name.

        Raises
        ------
        InputError
            There is none; the nearest name is given.
        """
        if name not in self._things:
            self._import_namesake(name)
        if name not in self._things:
            self._fill()
        if name not in self._things:
            raise InputError(
                f"'{name}' is not a {self.what}",
                expected=" | ".join(self.names()),
                nearest=nearest_name(name, self._things),
            )
        return self._things[name]

    def names(self) -> list[str]:
        """Return all names in alphabetical order."""
        self._fill()
        return sorted(self._things)

    def _import_namesake(self, name: str) -> None:
        module = name.replace("-", "_")
        if module.startswith("_") or not module.isidentifier():
            return
        for package in self._packages:
            if find_spec(f"{package}.{module}") is not None:
                importlib.import_module(f"{package}.{module}")

    def _fill(self) -> None:
        """Import the packages' modules, once."""
        packages, self._packages = self._packages, ()
        for package in packages:
            found = importlib.import_module(package)
            for module in pkgutil.iter_modules(found.__path__):
                if not module.name.startswith("_"):
                    importlib.import_module(f"{package}.{module.name}")
