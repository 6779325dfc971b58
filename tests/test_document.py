# SPDX-License-Identifier: Apache-2.0
"""YAML in: only plain data comes out, and every fault is one line with its place."""

from __future__ import annotations

import errno
import itertools
import os
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Literal

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field, TypeAdapter, field_validator, model_validator

from railweave.fabric.document import Document, load_yaml, parse_yaml
from railweave.fabric.errors import InputError
from railweave.fabric.fields import FileModel, Length, Rate, Ratio, Size, Time, fault


class Hosts(FileModel):
    count: int = Field(ge=1)
    model: str = "dgx-h100"


class Flow(FileModel):
    id: str
    size: Size
    rto: Time | Literal["none"] = "none"


class Flows(FileModel):
    kind: Literal["flows"]
    flows: tuple[Flow, ...]


class Collective(FileModel):
    kind: Literal["collective"]
    op: str
    wait: float = 0.5


class Model(FileModel):
    name: str = "x"
    hosts: Hosts = Hosts(count=1)
    ratio: Ratio = Fraction(1)
    mode: Literal["on", "off", "auto"] = "auto"
    fast: bool = False
    rate: Rate = Field(default=10**9, alias="host-leaf")
    length: Length = 0
    workload: Annotated[Flows | Collective, Field(discriminator="kind")] | None = None
    seed: int = 1

    @field_validator("seed")
    @classmethod
    def _seed(cls, seed: int) -> int:
        if seed < 0:
            raise fault(f"the seed {seed} is negative", expected="a seed of zero or more")
        return seed

    @model_validator(mode="after")
    def _whole(self) -> Model:
        if self.hosts.count == 7:
            raise fault("7 hosts are odd", key="hosts")
        if self.hosts.count == 9:
            raise InputError("9 hosts are odd too", field="hosts.count")
        return self


def checked(text: str) -> Model:
    return parse_yaml(text, file="x.yaml").check(Model)


def refusal(text: str) -> str:
    with pytest.raises(InputError) as caught:
        checked(text)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_good_file_becomes_exact_values() -> None:
    model = checked(
        "name: lab\n"
        "hosts: {count: 8}\n"
        'ratio: "3:2"\n'
        'mode: "off"\n'
        "fast: on\n"
        "host-leaf: 50GB/s\n"
        "length: 30m\n"
        "workload: {kind: flows, flows: [{id: a, size: 1MiB, rto: 500us}]}\n"
    )
    assert model.name == "lab"
    assert model.hosts == Hosts(count=8, model="dgx-h100")
    assert model.ratio == Fraction(3, 2)
    assert model.mode == "off"
    assert model.fast is True
    assert model.rate == 400 * 10**9
    assert model.length == 30_000
    assert isinstance(model.workload, Flows)
    (flow,) = model.workload.flows
    assert (flow.id, flow.size, flow.rto) == ("a", 2**20, 500 * 10**6)


def test_a_dump_reads_back() -> None:
    model = checked('hosts: {count: 8}\nratio: "3:2"\nhost-leaf: 1.5GB/s\nlength: 1mm\n')
    written = model.model_dump(mode="json", by_alias=True)
    assert written["host-leaf"] == "12Gbps"
    assert written["ratio"] == "3:2"
    assert checked(yaml.safe_dump(written, sort_keys=False)) == model


def test_python_code_may_use_either_name() -> None:
    assert Model.model_validate({"rate": "1Gbps"}).rate == 10**9
    assert Model.model_validate({"host-leaf": "1Gbps"}).rate == 10**9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "name: a\nhsots: {count: 8}\n",
            "x.yaml:2: hsots: unknown key 'hsots'; expected one of name, hosts, ratio, mode, fast, "
            "host-leaf, length, workload, seed; did you mean 'hosts'?",
        ),
        (
            "rate: 1Gbps",
            "x.yaml:1: rate: unknown key 'rate'; expected one of name, hosts, ratio, mode, fast, "
            "host-leaf, length, workload, seed; did you mean 'ratio'?",
        ),
        (
            "hosts:\n  modle: a\n  count: 3\n",
            "x.yaml:2: hosts.modle: unknown key 'modle'; expected one of count, model; "
            "did you mean 'model'?",
        ),
        ("hosts:\n  model: a\n", "x.yaml:1: hosts.count: it is missing"),
        ("hosts: {count: 0}", "x.yaml:1: hosts.count: this is 0; expected at least 1"),
        (
            "hosts: {count: 1e9}",
            "x.yaml:1: hosts.count: this is '1e9' (YAML reads 1e9 as text: write 1000000000); "
            "expected a whole number",
        ),
        ("hosts: {count: yes}", "x.yaml:1: hosts.count: this is true; expected a whole number"),
        ("hosts: {count: 2.0}", "x.yaml:1: hosts.count: this is 2.0; expected a whole number"),
        ('hosts: {count: "2"}', "x.yaml:1: hosts.count: this is '2'; expected a whole number"),
        ("hosts: 8", "x.yaml:1: hosts: this is 8; expected a mapping (key: value)"),
        ("hosts:", "x.yaml:1: hosts: it is empty; expected a mapping (key: value)"),
        ("fast: 1", "x.yaml:1: fast: this is 1; expected true or false"),
        (
            "name: no",
            "x.yaml:1: name: this is false (YAML reads no, off, on and yes as booleans: put the "
            "word in quotes); expected text",
        ),
        (
            "name: 12",
            'x.yaml:1: name: this is 12 (to mean text, write it in quotes: "12"); expected text',
        ),
        (
            "mode: off",
            "x.yaml:1: mode: this is false (YAML reads no, off, on and yes as booleans: put the "
            "word in quotes); expected one of on, off, auto",
        ),
        (
            "mode: atuo",
            "x.yaml:1: mode: this is 'atuo'; expected one of on, off, auto; did you mean 'auto'?",
        ),
        (
            "ratio: 2:1",
            'x.yaml:1: ratio: YAML reads an unquoted 2:1 as a base-60 number; expected "2:1" in '
            "quotes, or a time with its unit such as 90s",
        ),
        (
            "ratio: 121",
            "x.yaml:1: ratio: 121 is not a ratio (YAML turns an unquoted 2:1 into a base-60 "
            'number); expected a ratio in quotes, such as "2:1"',
        ),
        (
            'ratio: "0:1"',
            "x.yaml:1: ratio: '0:1' has a zero; expected two whole numbers of 1 or more",
        ),
        (
            "host-leaf: 400",
            "x.yaml:1: host-leaf: 400 has no unit; expected a rate with its unit, such as 400Gbps "
            "or 50GB/s",
        ),
        (
            "name: a\n\nworkload:\n  kind: flows\n  flows:\n    - {id: a, size: 1MiB}\n"
            "    - id: b\n      size: -1MiB\n",
            "x.yaml:8: workload.flows[1].size: '-1MiB' is negative; "
            "expected a size of zero or more",
        ),
        (
            "workload: {kind: flows, flows: [{id: a, size: 1MiB, rto: 5}]}",
            "x.yaml:1: workload.flows[0].rto: 5 has no unit; expected a time with its unit, such "
            "as 600ns or 2ms or none",
        ),
        (
            "workload: {kind: flowz}",
            "x.yaml:1: workload.kind: there is no 'flowz'; expected one of flows, collective; "
            "did you mean 'flows'?",
        ),
        ("workload: {op: a}", "x.yaml:1: workload.kind: it is missing"),
        ("workload: flows", "x.yaml:1: workload: this is 'flows'; expected a mapping (key: value)"),
        (
            "seed: -1",
            "x.yaml:1: seed: the seed -1 is negative; expected a seed of zero or more",
        ),
        ("name: a\nhosts: {count: 7}", "x.yaml:2: hosts: 7 hosts are odd"),
        ("hosts: {count: 9}", "x.yaml:1: hosts.count: 9 hosts are odd too"),
    ],
)
def test_a_fault_is_one_line_with_its_place(text: str, message: str) -> None:
    assert refusal(text) == message


def test_the_first_fault_in_the_file_is_told() -> None:
    assert refusal("seed: x\nname: 1\n").startswith("x.yaml:1: seed:")
    assert refusal("name: 1\nseed: x\n").startswith("x.yaml:1: name:")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "x.yaml: the file is empty; expected key: value lines"),
        ("# only a comment\n", "x.yaml: the file is empty; expected key: value lines"),
        ("---\n", "x.yaml: the file is empty; expected key: value lines"),
        ("- 1\n", "x.yaml:1: this is a list; expected key: value lines"),
        ("\nhello\n", "x.yaml:2: this is a single value; expected key: value lines"),
        ("a: 1\n---\nb: 2\n", "x.yaml:2: a second document begins; expected one document"),
        ("a: 1\nb: 2\na: 3\n", "x.yaml:3: a: the key 'a' is written twice (first on line 1)"),
        ("h: {b: 1, b: 2}\n", "x.yaml:1: h.b: the key 'b' is written twice (first on line 1)"),
        ("a: [\n", "x.yaml:2: this is not YAML: "),
        ("a: b: c\n", "x.yaml:1: this is not YAML: "),
        ("a: !!python/object/apply:os.system [ls]\n", "x.yaml:1: a: the tag !!python/object/apply"),
        (
            "!!python/name:os.system {}\n",
            "x.yaml:1: the tag !!python/name:os.system is not allowed",
        ),
        ("a: !!binary aGk=\n", "x.yaml:1: a: the tag !!binary is not allowed"),
        ("a: !mine 1\n", "x.yaml:1: a: the tag !mine is not allowed"),
        ("a: *b\n", "x.yaml:1: a: the alias *b has no anchor before it"),
        ("a: &a {b: *a}\n", "x.yaml:1: a.b: the alias *a contains itself"),
        ("a: &a x\n*a : 1\n", "x.yaml:2: the alias *a is a key"),
        (
            "a: {<<: 1}\n",
            "x.yaml:1: a.<<: << merges something else; expected an alias of a mapping",
        ),
        (
            "t: 12:30:00\n",
            'x.yaml:1: t: YAML reads an unquoted 12:30:00 as a base-60 number; expected "',
        ),
        ("t: 1:30.5\n", "x.yaml:1: t: YAML reads an unquoted 1:30.5 as a base-60 number"),
        ("t: 010\n", "x.yaml:1: t: YAML reads 010 as an octal number"),
        ("t: .inf\n", "x.yaml:1: t: .inf is not a finite number"),
        ("t: -.INF\n", "x.yaml:1: t: -.INF is not a finite number"),
        ("t: .NaN\n", "x.yaml:1: t: .NaN is not a finite number"),
        ("t: 1.0e+999\n", "x.yaml:1: t: this number is too large"),
        (
            "t: 9223372036854775808\n",
            "x.yaml:1: t: this number is too large; expected at most 9223",
        ),
        (f"t: {'9' * 6000}\n", "x.yaml:1: t: this number is too large"),
        ("no: 1\n", "x.yaml:1: YAML reads the key no as a boolean, not as a name"),
        ("on: 1\n", "x.yaml:1: YAML reads the key on as a boolean, not as a name"),
        ("1: 1\n", "x.yaml:1: YAML reads the key 1 as a number, not as a name"),
        ("?\n: 1\n", "x.yaml:1: YAML reads the key (nothing) as nothing, not as a name"),
        ("? [a]\n: 1\n", "x.yaml:1: this key is not a plain name"),
        ('a: "\\0"\n', "x.yaml:1: a: the character U+0000 does not belong in text"),
        ("a: 1\nb: \0\n", "x.yaml:2: the character U+0000 does not belong in text"),
        ("a: \ud800\n", "x.yaml:1: the character U+D800 does not belong in text"),
        ('a: "\\ud800"\n', "x.yaml:1: "),
        (
            "a: " + "[" * 65 + "]" * 65,
            "x.yaml:1: a" + "[0]" * 63 + ": more than 64 levels of nesting",
        ),
    ],
)
@pytest.mark.parametrize("parser", ["compiled", "python"])
def test_unsafe_yaml_is_refused(
    text: str, message: str, parser: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if parser == "python":
        monkeypatch.setattr("railweave.fabric._yaml_reader._PARSER", yaml.SafeLoader)
    with pytest.raises(InputError) as caught:
        parse_yaml(text, file="x.yaml")
    lines = {":1: this is not YAML", ":2: this is not YAML"}
    if any(mark in message for mark in lines):  # the two parsers point at different ends
        assert "x.yaml:" in str(caught.value)
        assert "this is not YAML" in str(caught.value)
    else:
        assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_million_brackets_are_refused() -> None:
    with pytest.raises(InputError, match=r"^x\.yaml:1: "):
        parse_yaml("a: " + "[" * 10**6, file="x.yaml")


def test_an_alias_bomb_is_refused() -> None:
    names = "abcdefghij"
    bomb = "a: &a [" + ",".join(["x"] * 10) + "]\n"
    for before, name in itertools.pairwise(names):
        bomb += f"{name}: &{name} [" + ",".join([f"*{before}"] * 10) + "]\n"
    with pytest.raises(InputError, match=r"x.yaml:6: f\[0\]: the aliases of this file explode"):
        parse_yaml(bomb, file="x.yaml")


def test_aliases_and_merges_share_what_they_name() -> None:
    document = parse_yaml(
        "base: &base\n  rate: 1Gbps\n  delay: 1us\nlink:\n  <<: *base\n  delay: 2us\n"
        "two: {<<: [{a: 1}, {a: 2, b: 3}]}\nlist: [*base]\n",
        file="x.yaml",
    )
    assert document.data == {
        "base": {"rate": "1Gbps", "delay": "1us"},
        "link": {"delay": "2us", "rate": "1Gbps"},
        "two": {"a": 1, "b": 3},
        "list": [{"rate": "1Gbps", "delay": "1us"}],
    }
    assert document.line(("link", "delay")) == 6
    assert document.line(("link", "rate")) == 2
    assert document.line(("list", 0, "delay")) == 3
    assert document.line(("list", 7)) == 8
    assert document.line(("nowhere",)) == 1


def test_plain_words_are_read_as_yaml_1_1_reads_them() -> None:
    document = parse_yaml(
        "a: [1, -2, 0x10, 1_000, 0b101, 1.5, .5, 1.0e+3, yes, OFF, ~, null, x, 1e9, 0x]\n"
        "b: ['1', \"no\", !!str 5, 2026-01-31]\n"
        "c: |\n  12:30:00\n",
        file="x.yaml",
    )
    assert document.data == {
        "a": [1, -2, 16, 1000, 5, 1.5, 0.5, 1000.0, True, False, None, None, "x", "1e9", "0x"],
        "b": ["1", "no", "5", "2026-01-31"],
        "c": "12:30:00\n",
    }


WORDS = st.text(st.characters(exclude_categories=["Cc", "Cs", "Cn"]), max_size=8)
SCALARS = st.none() | st.booleans() | st.integers(-(2**63) + 1, 2**63 - 1) | WORDS
DATA = st.recursive(
    SCALARS | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)


@settings(derandomize=True, deadline=None, max_examples=150)
@given(data=st.dictionaries(WORDS, DATA, min_size=1, max_size=4))
def test_what_yaml_writes_is_read_back(data: dict[str, object]) -> None:
    assert parse_yaml(yaml.safe_dump(data), file="x.yaml").data == data


@settings(derandomize=True, deadline=None, max_examples=300)
@given(text=st.text(alphabet="ab:-[]{}&*!<>|'\"#,? \n\t012.~%@\\", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        data = parse_yaml(text, file="x.yaml").data
    except InputError as error:
        message = str(error)
    else:
        assert isinstance(data, dict)
        return
    assert message.startswith("x.yaml:")
    assert "\n" not in message


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"a: 1\n\xff\xfe\x00")
    nul = tmp_path / "nul.yaml"
    nul.write_bytes(b"\x7fELF\x00\x00")
    large = tmp_path / "large.yaml"
    with large.open("wb") as stream:
        stream.truncate(64 * 2**20 + 1)
    for path, problem in (
        (tmp_path / "none.yaml", "none.yaml: there is no such file"),
        (tmp_path, ": this is a directory; expected a YAML file"),
        (binary, "binary.yaml:2: the file is not text; expected YAML in UTF-8"),
        (nul, "nul.yaml:1: the character U+007F does not belong in text"),
        (large, "large.yaml: the file is too large; expected at most 64MiB of YAML"),
        (binary / "below", "below: the file cannot be read (not a directory)"),
        (Path("a\0b"), "'a\\x00b': this is not a file name"),
    ):
        with pytest.raises(InputError) as caught:
            load_yaml(path)
        assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("number", "reason"),
    [(errno.EACCES, "permission denied"), (errno.EIO, "input/output error")],
)
def test_a_file_that_the_system_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, reason: str
) -> None:
    def refuse(path: Path, mode: str) -> None:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Path, "open", refuse)  # root may read every file, so ask no real one
    with pytest.raises(InputError) as caught:
        load_yaml(tmp_path / "locked.yaml")
    assert str(caught.value).endswith(f"locked.yaml: the file cannot be read ({reason})")


def test_a_byte_order_mark_and_windows_lines_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"\xef\xbb\xbfname: a\r\nseed: 2\r\n")
    document = load_yaml(path)
    assert document.data == {"name": "a", "seed": 2}
    assert document.line(("seed",)) == 2


def test_parts_of_a_document_are_checked_in_their_place() -> None:
    document = parse_yaml("a:\n  - {count: 2}\n  - {count: x}\n", file="x.yaml")
    assert document.check(Hosts, at=("a", 0)) == Hosts(count=2)
    with pytest.raises(InputError, match=r"^x.yaml:3: a\[1\].count: this is 'x'; expected a whole"):
        document.check(TypeAdapter(list[Hosts]), at=("a",))
    with pytest.raises(InputError, match=r"^x.yaml:1: b: it is missing"):
        document.check(Hosts, at=("b",))


def test_data_without_a_file_has_no_line() -> None:
    with pytest.raises(InputError, match=r"^hosts.count: this is 0; expected at least 1$"):
        Document({"hosts": {"count": 0}}).check(Model)


def test_schema_says_what_a_quantity_looks_like() -> None:
    schema = Model.model_json_schema(by_alias=True)
    assert schema["additionalProperties"] is False
    assert schema["properties"]["host-leaf"]["examples"] == ["400Gbps"]
    assert schema["properties"]["ratio"]["type"] == "string"
    assert schema["$defs"]["Flow"]["properties"]["size"]["examples"] == ["64MiB"]
