"""Stroom's XML: the meaning of each element, reports of those without one, and what a hostile file cannot do."""

from __future__ import annotations

import tracemalloc
import xml.etree.ElementTree as Tree
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.errors import Invalid
from millpond.maps.inputs.formats import references, xml
from millpond.maps.inputs.formats.files import Piece, find_files
from millpond.maps.inputs.formats.readers import Reading, read_piece
from millpond.maps.inputs.formats.xml import Element, read_elements
from millpond.maps.model.definition import Kind, MapDefinition, parse_value_type
from millpond.maps.model.one_value import python_value
from tests.rings.sampling import examples

MAPS = {
    "site": (Kind.STATE, None),
    "owner": (Kind.TEMPORAL_STATE, "string"),
    "seats": (Kind.STATE, "long"),
    "team": (Kind.RANGED_STATE, "string"),
    "country": (Kind.TEMPORAL_RANGED_STATE, "string"),
    "usage": (Kind.SESSION, None),
}
DEFINITIONS = {
    name: MapDefinition(name=name, kind=kind, incarnation="0" * 16, value=value and parse_value_type(value))
    for name, (kind, value) in MAPS.items()
}
EIGHT = 1_704_096_000_000
"""2024-01-01T08:00:00Z."""


def elements(text: str | bytes, chunk: int = 1 << 16) -> list[Element]:
    data = text.encode() if isinstance(text, str) else text
    chunks = (data[at : at + chunk] for at in range(0, len(data), chunk))
    return [element for some in read_elements(chunks, "a.xml") for element in some]


def load(
    folder: Path, body: str, root: str = "plan-b", **options: Any
) -> tuple[dict[str, list[dict[str, Any]]], dict[int, str]]:
    """The rows of each map, and why lines were rejected."""
    file = folder / "a.xml"
    file.write_text(f'<?xml version="1.0"?><{root} xmlns="{root}:2" xmlns:evt="event-logging:3">\n{body}\n</{root}>')
    rows: dict[str, list[dict[str, Any]]] = {}
    rejects: dict[int, str] = {}
    for block in read_piece(Piece(find_files([file])[0]), Reading(maps=DEFINITIONS, **options)):
        if block.definition is not None and block.rows is not None:
            records = block.rows.to_pylist()
            if block.definition.value is None and block.definition.kind.valued:
                records = [row | {"value": python_value(row["value"], None)} for row in records]
            rows.setdefault(block.definition.name, []).extend(records)
        rejects |= dict(zip(block.rejected["row"].to_pylist(), block.rejected["reason"].to_pylist(), strict=True))
    return rows, rejects


# -- what elements say --------------------------------------------------------------------------------


def test_references_go_to_maps_of_any_kind_but_sessions(tmp_path: Path) -> None:
    rows, rejects = load(
        tmp_path,
        """
        <reference><map>SITE</map><key>web 7 </key><value> Leeds</value></reference>
        <reference><map>owner</map><time>2024-01-01T08:00:00.000Z</time><key>car</key><value>ann</value></reference>
        <reference><map>team</map><range><from>500</from><to> 599 </to></range><value>Red</value></reference>
        <reference><map>team</map><from>-5</from><to>7</to><value>Blue</value></reference>
        <reference><map>team</map><key>203</key><value>One</value></reference>
        <reference><map>country</map><time>2024-01-01T08:00:00Z</time><from>1</from><to>2</to><value>UK</value></reference>
        <session><map>usage</map><key>u</key><time>2024-01-01T08:00:00.000Z</time><timeout>15m</timeout></session>
        <session><map>usage</map><key>v</key><time>2024-01-01T08:00:00.000Z</time></session>
        """,
        root="referenceData",
    )
    assert rejects == {}
    assert rows == {
        "site": [{"key": b"web 7 ", "value": " Leeds"}],
        "owner": [{"key": b"car", "effective_time": EIGHT, "value": "ann"}],
        "team": [
            {"key_start": 500, "key_end": 599, "value": "Red"}, {"key_start": -5, "key_end": 7, "value": "Blue"},
            {"key_start": 203, "key_end": 203, "value": "One"},
        ],
        "country": [{"key_start": 1, "key_end": 2, "effective_time": EIGHT, "value": "UK"}],
        "usage": [
            {"key": b"u", "start": EIGHT, "end": EIGHT + 900_000}, {"key": b"v", "start": EIGHT, "end": EIGHT},
        ],
    }  # fmt: skip


def test_named_elements_of_plan_b(tmp_path: Path) -> None:
    time = "<time>2024-01-01T08:00:00.000Z</time>"
    rows, rejects = load(
        tmp_path,
        f"""
        <state><map>seats</map><key>a</key><value>7</value></state>
        <Temporal-State><MAP>owner</MAP><Key>car</Key>{time}<VALUE>ann</VALUE></Temporal-State>
        <range-state><map>team</map><range><from>1</from><to>2</to></range><value>A</value></range-state>
        <temporal-range-state><map>country</map><range><from>1</from><to>2</to></range>{time}<value/></temporal-range-state>
        <session><map>usage</map><key>ann|mail</key>{time}<timeout>1h</timeout></session>
        """,
    )
    assert rejects == {}
    assert {name: len(group) for name, group in rows.items()} == dict.fromkeys(
        ("seats", "owner", "team", "country", "usage"), 1
    )
    assert rows["seats"] == [{"key": b"a", "value": 7}]
    assert rows["country"][0]["value"] is None


def test_a_time_that_is_missing_is_the_effective_time_of_the_load(tmp_path: Path) -> None:
    body = "<reference><map>owner</map><key>car</key><value>ann</value></reference>"
    session = "<session><map>usage</map><key>u</key></session>"
    rows, rejects = load(tmp_path, f"{body}\n{session}", effective_time="2024-01-01T08:00Z")
    assert rows == {"owner": [{"key": b"car", "effective_time": EIGHT, "value": "ann"}]}
    assert list(rejects) == [3]
    rows, rejects = load(tmp_path, body)
    assert (rows, list(rejects)) == ({}, [2])
    assert "--effective-time" in rejects[2]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("<value>x</value>", "x"),
        ("<value/>", None),
        ("<value> \n</value>", None),
        ("", None),
        ("<value><![CDATA[<a> & ]]>&lt;b&#65;</value>", "<a> & <bA"),
        ("<value>a<!-- no -->b<?no?></value>", "ab"),
        ("<value> <a>1</a> </value>", '<a xmlns="plan-b:2">1</a>'),
        (
            '<value><evt:Loc at="&lt;&quot;1"><evt:Site>Le&amp;eds</evt:Site>!</evt:Loc></value>',
            '<evt:Loc at=\'&lt;"1\' xmlns:evt="event-logging:3"><evt:Site>Le&amp;eds</evt:Site>!</evt:Loc>',
        ),
        ('<value><x:a xmlns:x="u"><b xmlns="v"/></x:a></value>', '<x:a xmlns:x="u"><b xmlns="v"></b></x:a>'),
    ],
)
def test_values(tmp_path: Path, value: str, expected: str | None) -> None:
    rows, rejects = load(tmp_path, f"<state><map>site</map><key>k</key>{value}</state>")
    assert rejects == {}
    assert [row["value"] for row in rows["site"]] == [expected]


def test_lines_and_other_encodings(tmp_path: Path) -> None:
    head = '<?xml version="1.0" encoding="ISO-8859-1"?>\n<plan-b>\n'
    body = "<state>\n<map>site</map><key>é</key></state>\n<state><map>site</map></state></plan-b>"
    for data in ((head + body).encode("latin-1"), ("<plan-b>\n\n" + body).encode("utf-16")):
        parsed = elements(data, chunk=7)
        assert [element.line for element in parsed] == [3, 5]
        assert parsed[0].fields["key"] == "é"


# -- reports of other elements ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("element", "reason"),
    [
        ("<state><map>sight</map><key>k</key></state>", "there is no map 'sight', did you mean 'site'?"),
        ("<state><map>zzz</map><key>k</key></state>", "there is no map 'zzz'"),
        ("<state><key>k</key></state>", "<map> is missing"),
        ("<state><map>site</map><value>v</value></state>", "key is missing"),
        ("<session><map>site</map><key>k</key></session>", "map 'site' is of kind state, which <session> is not"),
        (
            "<reference><map>usage</map><key>k</key></reference>",
            "map 'usage' is of kind session, which <reference> is not",
        ),
        ("<trace><map>site</map></trace>", "<trace> is none of the elements that maps can take"),
        ("<histogram><map>site</map></histogram>", "map 'site' is of kind state, which <histogram> is not"),
        ("<state><map>site</map><tags><tag/></tags></state>", "a <tag> has a <name> and a <value>"),
        ("<state><map>site</map><key>a</key><key>b</key></state>", "<key> is given twice"),
        ("<state><map>site</map><key>a<b>c</b></key></state>", "<b> is no part of <key>"),
        ("<state><map>site</map><key>a</key><from>1</from></state>", "map 'site' has keys, not ranges"),
        ("<state><map>site</map><key>a</key><timeout>1h</timeout></state>", "only sessions have a timeout"),
        (
            "<reference><map>team</map><key>1</key><range><from>1</from><to>2</to></range></reference>",
            "it has both a key and a range",
        ),
        (
            "<reference><map>team</map><from>9</from><to>2</to></reference>",
            "range starts at 9 and ends before that, at 2",
        ),
        ("<reference><map>team</map><from>9</from></reference>", "key_end is missing"),
        ("<reference><map>team</map><key>many</key></reference>", "key_start 'many' is not a whole number"),
        ("<state><map>seats</map><key>a</key><value>7.5</value></state>", "value '7.5' is not a whole number"),
        (
            "<session><map>usage</map><key>a</key><time>2024-01-01T08:00Z</time><timeout>soon</timeout></session>",
            "timeout 'soon' is not a duration such as 15m",
        ),
        (
            "<reference><map>owner</map><key>a</key><time>yesterday</time></reference>",
            "effective_time 'yesterday' is not a time with a zone in the years 1 to 9999",
        ),
    ],
)  # fmt: skip
def test_a_bad_element_is_rejected_with_its_line(tmp_path: Path, element: str, reason: str) -> None:
    good = "<state><map>site</map><key>good</key></state>"
    rows, rejects = load(tmp_path, f"{good}\n{element}\n{good}")
    assert rejects == {3: reason}
    assert len(rows["site"]) == 2


def test_one_map_of_a_file_may_be_loaded_alone(tmp_path: Path) -> None:
    keys = {"<map>site</map>": "a", "<map>seats</map>": "b", "": "c"}
    body = "".join(f"<state>{name}<key>{key}</key></state>" for name, key in keys.items())
    rows, rejects = load(tmp_path, body, map="site")
    assert rejects == {}
    assert [row["key"] for row in rows["site"]] == [b"a", b"c"]
    with pytest.raises(Invalid, match="it has rows for: seats, site"):
        load(tmp_path, "<state><map>site</map></state><state><map>seats</map></state>", map="team")


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 1, "malformed: no element found"),
        ("text", 1, "malformed: syntax error"),
        ("<plan-b>\n<state>\n</plan-b>", 3, "malformed: mismatched tag"),
        ("<plan-b>\n<state>", 2, "malformed: no element found"),
        ("<plan-b>\n&nothing;</plan-b>", 2, "malformed: undefined entity"),
        ("<plan-b>\n</plan-b>\n<plan-b/>", 3, "malformed: junk after document element"),
        ("<plan-b>\n\0</plan-b>", 2, "malformed: not well-formed"),
        ("\n<html>\n</html>", 2, "the root element is <html>"),
    ],
)
def test_malformed_documents_are_refused_at_the_place(text: str, line: int, message: str) -> None:
    with pytest.raises(Invalid) as caught:
        elements(text)
    assert message in caught.value.message
    assert caught.value.values["line"] == line


# -- hostile files ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "doctype",
    [
        '<!DOCTYPE a [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]>',
        '<!DOCTYPE a [<!ENTITY file SYSTEM "file:///etc/passwd">]>',
        '<!DOCTYPE a SYSTEM "http://localhost:1/a.dtd">',
        '<!DOCTYPE a [<!ENTITY % p SYSTEM "file:///etc/passwd"> %p;]>',
        "<!DOCTYPE plan-b>",
    ],
)
def test_document_types_are_refused_before_anything_is_expanded(doctype: str) -> None:
    with pytest.raises(Invalid, match="declares a document type"):
        elements(f"{doctype}<plan-b><state><map>&a;&b;&file;</map></state></plan-b>")


def test_names_without_end_are_refused() -> None:
    many = "".join(f"<e{number} a{number}=''/>" for number in range(600))
    with pytest.raises(Invalid, match="more than 1,000 different names"):
        elements(f"<plan-b>{many}</plan-b>")
    with pytest.raises(Invalid, match="name is longer than 1,000 characters"):
        elements(f"<plan-b><{'a' * 1001}/></plan-b>")


def endless(begin: str, more: str, count: int = 10_000) -> Iterator[bytes]:
    yield begin.encode()
    block = (more * (10_000 // len(more) + 1)).encode()
    for _ in range(count):
        yield block


@pytest.mark.usefixtures("processor")
@pytest.mark.parametrize(
    ("begin", "more", "message"),
    [
        ("<plan-b><state><value>", "x", "an element has more than"),
        ("<plan-b><state><value>", "<a/>", "an element has more than"),
        ("<plan-b><state><value><r>", "<a/>", "an element has more than"),
        (f"<plan-b xmlns='{'n' * 10_000}'><state><value>", "<a/>", "an element has more than"),
        ("<plan-b><state><junk>", "<a>b</a>", "an element has more than"),
        ("<plan-b><state ", 'a="', "malformed|an element has more than"),
        ("<plan-b><state a='", "x", "an element has more than"),
        ("<plan-b><!--", "x", "an element has more than"),
        ("<plan-b>", " ", "an element has more than"),
        ("<plan-b><state><value>", "<a>", "elements are nested more than"),
        ("<plan-b><state>", "<a>", "elements are nested more than"),
    ],
)
def test_what_never_ends_is_ended(monkeypatch: pytest.MonkeyPatch, begin: str, more: str, message: str) -> None:
    monkeypatch.setattr(xml, "ELEMENT_BYTES_MAX", 1 << 19)
    tracemalloc.start()
    try:
        with pytest.raises(Invalid, match=message):
            for some in read_elements(endless(begin, more), "a.xml"):
                assert some == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20


@pytest.mark.usefixtures("processor")
def test_memory_does_not_grow_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(references, "BATCH_BYTES", 1 << 18)
    monkeypatch.setattr(references, "CHUNK_BYTES", 1 << 14)
    record = "<state><map>site</map><key>k</key><value>some text</value></state>\n"

    def peak(records: int) -> int:
        file = tmp_path / "a.xml"
        with file.open("w") as target:
            target.write("<plan-b>")
            for _ in range(records // 1000):
                target.write(record * 1000)
            target.write("</plan-b>")
        found = find_files([file])[0]
        count = 0
        tracemalloc.start()
        try:
            for block in read_piece(Piece(found), Reading(maps=DEFINITIONS)):
                count += 0 if block.rows is None else block.rows.num_rows
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            assert count == records

    few, many = peak(5_000), peak(25_000)
    assert many < few * 1.5


# -- by property --------------------------------------------------------------------------------------

# All that XML may have.
characters = st.characters(
    exclude_categories=("Cs", "Cc"), include_characters="\n\t", exclude_characters="\ufffe\uffff"
)
texts = st.text(characters, max_size=8)


@given(st.lists(st.tuples(texts, texts), max_size=10), st.integers(1, 50))
@settings(max_examples=examples(15, 60))
def test_texts_survive_wherever_chunks_end(pairs: list[tuple[str, str]], chunk: int) -> None:
    body = "".join(f"<state><key>{escape(key)}</key><value>{escape(value)}</value></state>" for key, value in pairs)
    parsed = elements(f"<plan-b>{body}</plan-b>", chunk)
    assert [(element.fields["key"], element.fields["value"]) for element in parsed] == pairs


names = st.sampled_from(["a", "p:a", "q:b", "r:c", "b"])
attributes = st.dictionaries(
    st.sampled_from(["x", "p:x", "xmlns", "xmlns:q", "xmlns:r"]), st.sampled_from(["u", "v&<'\""]), max_size=2
)
trees = st.recursive(
    st.tuples(names, attributes, st.just([])),
    lambda inner: st.tuples(names, attributes, st.lists(st.one_of(inner, texts), max_size=3)),
    max_leaves=6,
)


def written(node: Any) -> str:
    if isinstance(node, str):
        return escape(node)
    name, attributes, inner = node
    attrs = "".join(f' {key}="{escape(value, {chr(34): "&quot;"})}"' for key, value in attributes.items())
    return f"<{name}{attrs}>{''.join(map(written, inner))}</{name}>"


@pytest.mark.usefixtures("processor")
@given(trees, st.integers(5, 80))
@settings(max_examples=examples(40, 150))
def test_xml_within_a_value_means_the_same_on_its_own(tree: Any, chunk: int) -> None:
    value = f"<value>{written(tree)}</value>"
    body = f"<plan-b xmlns='n:0' xmlns:p='n:1' xmlns:q='n:2'><state xmlns:r='n:3'>{value}</state></plan-b>"
    (element,) = elements(body, chunk)
    assert element.xml
    assert meaning(Tree.fromstring(element.fields["value"])) == meaning(Tree.fromstring(body)[0][0][0])


def meaning(node: Tree.Element) -> object:
    """The document as a reader that understands namespaces sees it."""
    return node.tag, node.attrib, node.text or "", [(meaning(inner), inner.tail or "") for inner in node]
