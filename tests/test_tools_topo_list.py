# SPDX-License-Identifier: Apache-2.0
"""``railweave topo list`` shows every entry of the catalogue with the sources of its numbers."""

import json

import pytest

from railweave.fabric.catalogue import CLASSES, catalogue_names
from railweave.tools import cli


@pytest.mark.parametrize("section", ["hosts", "racks", "gpus", "nics", "switches", "cables"])
def test_a_section_of_the_catalogue(section, capsys):
    assert cli.run_command_line(("topo", "list", section)) == 0
    shown = capsys.readouterr().out
    assert cli.run_command_line(("topo", "list", section, "--json")) == 0
    entries = json.loads(capsys.readouterr().out)[section]
    assert [entry["name"] for entry in entries] == catalogue_names(section)
    for entry in entries:
        assert entry["name"] in shown
        assert entry["about"] in shown
        for figure in entry["figures"].values():
            assert figure["source"]
            assert figure["grade"] in CLASSES
