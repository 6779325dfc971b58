# SPDX-License-Identifier: Apache-2.0
"""Read the files of the device catalogue: entries, their spellings, figures and sources.

The numbers lie in ``catalog/*.yaml``, each written ``{value, source, class}``; what the source
keys stand for is in ``catalog/sources.yaml``. Names are looked up without regard to case, dashes
and underscores, so ``H100``, ``tomahawk5`` and ``tomahawk-5`` all find their entry.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from railweave.fabric.errors import InputError, nearest_name
from railweave.fabric.units import parse_power_mw

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "CLASSES",
    "Figure",
    "Footprint",
    "Price",
    "catalogue_names",
    "figures_of",
    "find_entry",
    "footprint_of",
    "price_of",
]

CLASSES: Final = ("measured", "published", "derived", "assumed")


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One number of the catalogue as written, with where it comes from.

    ``grade`` is ``measured``, ``published``, ``derived`` (by arithmetic) or ``assumed``.
    """

    value: str | int | float
    source: str
    grade: str


@dataclass(frozen=True, kw_only=True)
class Price:
    """What one piece costs: an amount of money in hundredths of its currency (ISO 4217)."""

    cents: int
    currency: str


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """What a device takes and costs; None where no figure was found.

    Parameters
    ----------
    power_mw, max_power_mw
        Typical and highest power in milliwatts; of a switch without its optics.
    rack_units
        Height in rack units.
    price
        Price of one.
    """

    power_mw: int | None = None
    max_power_mw: int | None = None
    rack_units: int | None = None
    price: Price | None = None


@cache
def _read(file: str) -> Mapping[str, Any]:
    """Read one catalogue file (shipped with railweave, hence trusted)."""
    import yaml

    text = resources.files("railweave.fabric").joinpath("catalog", file).read_text("utf-8")
    data: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return data


def _key(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").replace(" ", "")


@cache
def _entries(section: str) -> tuple[Mapping[str, Any], Mapping[str, str]]:
    """Return the entries of a section by name, and every spelling with the name it stands for."""
    entries = _read(f"{section}.yaml")[section]
    spellings: dict[str, str] = {}
    for name, entry in entries.items():
        for spelling in (name, *entry.get("aliases", ())):
            spellings[_key(spelling)] = name
    return entries, spellings


def catalogue_names(section: str) -> list[str]:
    """Return the names of a section: ``gpus nics hosts racks switches`` or ``cables``.

    Examples
    --------
    >>> "h100" in catalogue_names("gpus")
    True
    """
    return sorted(_entries(section)[0])


def find_entry(section: str, what: str, name: str) -> tuple[str, Mapping[str, Any]]:
    """Return the name and content of an entry, whatever the spelling.

    Raises
    ------
    InputError
        Not in the catalogue; the nearest name is given.
    """
    entries, spellings = _entries(section)
    found = spellings.get(_key(name))
    if found is None:
        near = nearest_name(_key(name), spellings)
        raise InputError(
            f"'{name}' is not a {what} of the catalogue",
            expected=f"one of {', '.join(sorted(entries))}",
            nearest=spellings[near] if near else None,
        )
    return found, entries[found]


def figures_of(entry: Mapping[str, Any], prefix: str = "") -> dict[str, Figure]:
    """Collect the figures of an entry by dotted path, with their sources written out."""
    sources = _read("sources.yaml")["sources"]
    found: dict[str, Figure] = {}
    for key, item in entry.items():
        if not isinstance(item, dict):
            continue
        path = f"{prefix}{key}"
        if "value" in item:
            found[path] = Figure(
                value=item["value"], source=sources[item["source"]], grade=item["class"]
            )
        else:
            found |= figures_of(item, f"{path}.")
    return found


def price_of(entry: Mapping[str, Any]) -> Price | None:
    """Return the price of an entry, written as ``{value: 186 USD, ...}``, if it has one."""
    if "price" not in entry:
        return None
    amount, currency = entry["price"]["value"].split()
    whole, _, cents = amount.partition(".")
    return Price(cents=100 * int(whole) + int(cents.ljust(2, "0")), currency=currency)


def footprint_of(entry: Mapping[str, Any]) -> Footprint:
    """Return power, height and price of an entry, as far as they are known."""

    def power(key: str) -> int | None:
        return parse_power_mw(entry[key]["value"]) if key in entry else None

    return Footprint(
        power_mw=power("power"),
        max_power_mw=power("max_power"),
        rack_units=entry["rack_units"]["value"] if "rack_units" in entry else None,
        price=price_of(entry),
    )
