# SPDX-License-Identifier: Apache-2.0
"""Prices and powers of a bill of materials: the catalogue's, or those of a file of one's own.

A price file replaces what it names and leaves the rest:

.. code-block:: yaml

    schema: 1
    currency: USD
    exchange: {EUR: 1.10}          # of one EUR, in the currency above
    prices: {quantum-2: 25000 USD, 2xsr4-800g: 650 USD, fibre: 60 USD}
    power: {tomahawk-4: 600W}
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from railweave.fabric.cables import cable_model
from railweave.fabric.catalogue import Footprint, Price, catalogue_names
from railweave.fabric.devices import host_model, nic_model, rack_model, switch_model
from railweave.fabric.document import load_yaml
from railweave.fabric.errors import InputError, nearest_name
from railweave.fabric.units import parse_power_mw

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

__all__ = ["FIBRE", "SECTIONS", "PriceList", "load_prices", "parse_price"]

FIBRE: Final = "fibre"
"""A fibre patch cord, in bills and price files: no published price of MPO trunks was found."""

SECTIONS: Final[Mapping[str, Callable[[str], Any]]] = {
    "switches": switch_model,
    "nics": nic_model,
    "cables": cable_model,
    "hosts": host_model,
    "racks": rack_model,
}

_EXCHANGE: Final = {"EUR": 1.1, "GBP": 1.3}
"""Dollars for one: round figures of 2026, assumed; a price file replaces them."""


@dataclass(frozen=True, kw_only=True)
class PriceList:
    """Prices in one currency.

    Parameters
    ----------
    currency
        ISO 4217 code of every amount that `cents` returns.
    exchange
        Of one unit of other currencies, in this one.
    own
        Item -> price of the user's file.
    own_power_mw
        Item -> power of the user's file.
    """

    currency: str = "USD"
    exchange: Mapping[str, float] = field(default_factory=lambda: dict(_EXCHANGE))
    own: Mapping[str, Price] = field(default_factory=dict)
    own_power_mw: Mapping[str, int] = field(default_factory=dict)

    def footprint(self, section: str, item: str) -> Footprint:
        """Return what the catalogue says of an item; nothing of fibre."""
        if item == FIBRE or not item:
            return Footprint()
        found: Footprint = SECTIONS[section](item).footprint
        return found

    def cents(self, section: str, item: str) -> int | None:
        """Return the price of one in hundredths of the currency, None where none is known."""
        price = self.own.get(item) or self.footprint(section, item).price
        if price is None:
            return None
        if price.currency == self.currency:
            return price.cents
        rate = self.exchange.get(price.currency)
        return None if rate is None else round(price.cents * rate)

    def power_mw(self, section: str, item: str) -> int | None:
        """Return the typical power of one (the highest, where only that is known) in mW."""
        if item in self.own_power_mw:
            return self.own_power_mw[item]
        found = self.footprint(section, item)
        return found.power_mw if found.power_mw is not None else found.max_power_mw

    def origin(self, section: str, item: str) -> str:
        """Say where a price comes from."""
        if item in self.own:
            return "price file"
        if item == FIBRE or not item:
            return ""
        figure = SECTIONS[section](item).figures.get("price")
        return f"{figure.grade}: {figure.source}" if figure is not None else ""


def load_prices(path: Path) -> PriceList:
    """Read a price file.

    Raises
    ------
    InputError
        An unknown key or item, or an amount without its currency; with file and line.
    """
    document = load_yaml(path)
    data: dict[str, Any] = document.data
    keys = ("schema", "currency", "exchange", "prices", "power")
    for key in data:
        if key not in keys:
            raise document.error(
                f"there is no key '{key}'",
                at=(key,),
                expected=", ".join(keys),
                nearest=nearest_name(str(key), keys),
            )
    if data.get("schema") != 1:
        raise document.error("this is not schema 1", at=("schema",), expected="schema: 1")
    for key in ("exchange", "prices", "power"):
        if not isinstance(data.get(key, {}), dict):
            raise document.error("this is not a mapping", at=(key,), expected="name: value lines")
    currency = data.get("currency", "USD")
    if not (isinstance(currency, str) and len(currency) == 3 and currency.isupper()):
        raise document.error("this is no currency", at=("currency",), expected="USD, EUR, ...")
    known = {FIBRE, *(name for section in SECTIONS for name in catalogue_names(section))}
    exchange = {} if currency != "USD" else dict(_EXCHANGE)
    for name, rate in data.get("exchange", {}).items():
        if not isinstance(rate, int | float) or isinstance(rate, bool) or not rate > 0:
            raise document.error("this is no rate", at=("exchange", name), expected="EUR: 1.10")
        exchange[name] = float(rate)
    own: dict[str, Price] = {}
    power: dict[str, int] = {}
    for key in ("prices", "power"):
        for name, value in data.get(key, {}).items():
            if name not in known:
                raise document.error(
                    f"'{name}' is not in the catalogue",
                    at=(key, name),
                    expected="the name of an entry, as `railweave topo list` shows them",
                    nearest=nearest_name(str(name), known),
                )
            try:
                if key == "power":
                    power[name] = parse_power_mw(value)
                else:
                    own[name] = parse_price(value)
            except InputError as error:
                raise document.error(
                    error.message, at=(key, name), expected=error.expected
                ) from None
    return PriceList(currency=currency, exchange=exchange, own=own, own_power_mw=power)


def parse_price(value: object) -> Price:
    """Read an amount and its currency, such as ``25000 USD``.

    Raises
    ------
    InputError
        It is not one.
    """
    parts = value.split() if isinstance(value, str) else []
    if len(parts) == 2 and len(parts[1]) == 3 and parts[1].isupper():
        whole, _, cents = parts[0].replace(",", "").partition(".")
        if whole.isdigit() and (not cents or (cents.isdigit() and len(cents) <= 2)):
            return Price(cents=100 * int(whole) + int(cents.ljust(2, "0") or 0), currency=parts[1])
    raise InputError(f"'{value}' is no price", expected="an amount and its currency: 25000 USD")
