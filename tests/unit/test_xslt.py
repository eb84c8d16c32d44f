"""Stylesheets that ask maps: answers of every kind, whole outputs, and what goes wrong in words."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from lxml import etree

import millpond
from millpond import xslt
from millpond.clock import ManualClock
from millpond.times.instants import parse_instant

REFERENCE = """<?xml version="1.0"?>
<plan-b xmlns="plan-b:2" xmlns:evt="event-logging:3" version="2.0">
  <state><map>ip_to_host</map><key>10.0.0.7</key><value>web-7</value></state>
  <state><map>ip_to_host</map><key>10.0.0.8</key><value>web-8</value></state>
  <temporal-state><map>host_to_location</map><key>web-7</key><time>2025-01-01T00:00:00.000Z</time>
    <value><evt:Location><evt:Site>Leeds</evt:Site></evt:Location></value></temporal-state>
  <temporal-state><map>host_to_location</map><key>web-7</key><time>2025-03-01T00:00:00.000Z</time>
    <value><evt:Location><evt:Site>York</evt:Site></evt:Location></value></temporal-state>
  <range-state><map>badge_to_team</map><range><from>500</from><to>599</to></range><value>Red</value></range-state>
  <session><map>in_use</map><key>ann</key><time>2025-01-01T09:00:00.000Z</time><timeout>15m</timeout></session>
</plan-b>
"""

KINDS = {
    "ip_to_host": "state", "host_to_location": "temporal_state", "badge_to_team": "ranged_state", "in_use": "session",
}  # fmt: skip

STYLESHEET = """<?xml version="1.0" encoding="UTF-8"?>
<xsl:stylesheet version="1.0" xmlns="event-logging:3" xmlns:evt="event-logging:3" xmlns:r="records:2"
    xmlns:stroom="stroom" xmlns:xsl="http://www.w3.org/1999/XSL/Transform" exclude-result-prefixes="evt r stroom">
  <xsl:output indent="yes"/>
  <xsl:strip-space elements="*"/>
  <xsl:template match="r:records"><Events><xsl:apply-templates/></Events></xsl:template>
  <xsl:template match="r:record">
    <xsl:variable name="time" select="r:data[@name='time']/@value"/>
    <xsl:variable name="user" select="r:data[@name='user']/@value"/>
    <xsl:variable name="ip" select="r:data[@name='ip']/@value"/>
    <xsl:variable name="place" select="stroom:lookup('IP_TO_HOST/HOST_TO_LOCATION', $ip, $time)"/>
    <Event>
      <User team="{stroom:lookup('BADGE_TO_TEAM', r:data[@name='badge']/@value, $time)}">
        <xsl:value-of select="$user"/>
        <xsl:if test="stroom:lookup('in_use', $user, $time)"> (in session)</xsl:if>
      </User>
      <Device><xsl:value-of select="stroom:lookup('ip_to_host', $ip, $time)"/></Device>
      <xsl:choose>
        <xsl:when test="$place"><xsl:copy-of select="$place"/></xsl:when>
        <xsl:otherwise><Unknown/></xsl:otherwise>
      </xsl:choose>
    </Event>
  </xsl:template>
</xsl:stylesheet>
"""

EVENTS = """<records xmlns="records:2">
  <record><data name="time" value="2025-01-01T09:10:00.000Z"/><data name="user" value="ann"/>
    <data name="ip" value="10.0.0.7"/><data name="badge" value="512"/></record>
  <record><data name="time" value="2025-03-05T09:10:00.000Z"/><data name="user" value="ann"/>
    <data name="ip" value="10.0.0.7"/><data name="badge" value="600"/></record>
  <record><data name="time" value="2025-01-01T09:10:00.000Z"/><data name="user" value="bob"/>
    <data name="ip" value="10.0.0.8"/><data name="badge" value="none"/></record>
</records>
"""

ENRICHED = """<?xml version="1.0"?>
<Events xmlns="event-logging:3">
  <Event>
    <User team="Red">ann (in session)</User>
    <Device>web-7</Device>
    <evt:Location xmlns:evt="event-logging:3">
      <evt:Site>Leeds</evt:Site>
    </evt:Location>
  </Event>
  <Event>
    <User team="">ann</User>
    <Device>web-7</Device>
    <evt:Location xmlns:evt="event-logging:3">
      <evt:Site>York</evt:Site>
    </evt:Location>
  </Event>
  <Event>
    <User team="">bob</User>
    <Device>web-8</Device>
    <Unknown/>
  </Event>
</Events>
"""


@pytest.fixture(scope="module")
def pond(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("xslt")
    (folder / "reference.xml").write_text(REFERENCE)
    with millpond.open(folder / "pond") as opened:
        for name, kind in KINDS.items():
            opened.create_map(name, kind=kind)
        opened.load_files(folder / "reference.xml")
        yield opened


def transformed(pond: Any, *calls: str, **settings: Any) -> list[str]:
    """The answers of calls of `stroom:lookup`, copied into elements of their own, without the declarations."""
    copies = "".join(f'<a><xsl:copy-of select="{call}"/></a>' for call in calls)
    stylesheet = etree.XML(
        '<xsl:stylesheet version="1.0" xmlns:stroom="stroom" xmlns:xsl="http://www.w3.org/1999/XSL/Transform"'
        f' exclude-result-prefixes="stroom"><xsl:template match="/"><all>{copies}</all></xsl:template></xsl:stylesheet>'
    )
    transform = etree.XSLT(stylesheet, extensions=xslt.functions(pond, **settings))
    answers = transform(etree.XML("<r/>")).getroot()
    assert answers is not None
    return [
        "".join([element.text or "", *(etree.tostring(inner).decode() for inner in element)]) for element in answers
    ]


def test_events_are_enriched_by_the_reference_data_of_their_time(pond: Any) -> None:
    transform = etree.XSLT(etree.XML(STYLESHEET.encode()), extensions=xslt.functions(pond))
    assert str(transform(etree.XML(EVENTS))) == ENRICHED


def test_time_left_out_is_now_and_may_be_given(pond: Any) -> None:
    call = "stroom:lookup('host_to_location', 'web-7')//*"
    template = '<evt:Site xmlns:evt="event-logging:3">{}</evt:Site>'
    assert transformed(pond, call) == [template.format("York")]
    assert transformed(pond, call, at="2025-02-01T00:00Z") == [template.format("Leeds")]
    assert transformed(pond, call, clock=ManualClock(parse_instant("2025-02-01T00:00Z"))) == [template.format("Leeds")]
    assert transformed(pond, call, at="2024-02-01T00:00Z") == [""]


def test_numbers_and_text_ask_ranged_maps_and_other_text_is_in_no_range(pond: Any) -> None:
    calls = [
        f"stroom:lookup('badge_to_team', {key})" for key in ("500", "'599'", "499 + 101", "'x'", "/nothing", "5.5")
    ]
    assert transformed(pond, *calls) == ["Red", "Red", "", "", "", ""]


def test_a_session_answers_with_its_key(pond: Any) -> None:
    asks = "stroom:lookup('in_use', 'ann', '2025-01-01T09:{}:00.000Z')"
    assert transformed(pond, asks.format("15"), asks.format("16")) == ["ann", ""]


def test_values_of_every_type_are_written_as_text(tmp_path: Path) -> None:
    with millpond.open(tmp_path / "pond") as opened:
        for name, value, content in (
            ("longs", "long", 2**60 + 1), ("doubles", "double", 39.5), ("flags", "boolean", True),
            ("times", "timestamp", "2025-01-01T00:00Z"), ("bytes", "binary", b"\x00\xff"), ("angles", "string", "<a>&"),
        ):  # fmt: skip
            opened.create_map(name, kind="state", value=value).load([{"key": "k", "value": content}])
        answers = transformed(
            opened, *(f"stroom:lookup('{pond_map.name}', 'k')" for pond_map in sorted(opened.maps(), key=str))
        )
        found = dict(zip((pond_map.name for pond_map in sorted(opened.maps(), key=str)), answers, strict=True))
    assert found == {
        "longs": "1152921504606846977", "doubles": "39.5", "flags": "true", "times": "2025-01-01T00:00:00.000Z",
        "bytes": "AP8=", "angles": "<a>&",
    }  # fmt: skip


def test_a_struct_is_an_element_with_a_child_for_every_field_that_has_a_value(tmp_path: Path) -> None:
    with millpond.open(tmp_path / "pond") as opened:
        weather = opened.create_map("weather", kind="state", value="temp double, `wind speed` double, sky string")
        weather.load([{"key": "JFK", "temp": 39.5, "wind speed": 12.0, "sky": None}])
        found = transformed(
            opened, "stroom:lookup('WEATHER', 'JFK')", "stroom:lookup('weather', 'JFK')/wind_speed/text()"
        )
    assert found == ["<weather><temp>39.5</temp><wind_speed>12.0</wind_speed></weather>", "12.0"]


def test_a_document_type_in_a_value_stays_text(tmp_path: Path) -> None:
    bomb = '<!DOCTYPE x [<!ENTITY e "boom">]><x>&e;</x>'
    with millpond.open(tmp_path / "pond") as opened:
        opened.create_map("texts", kind="state").load([{"key": "k", "value": bomb}])
        assert transformed(opened, "stroom:lookup('texts', 'k')") == [bomb]


@pytest.mark.parametrize(
    ("call", "error", "kind"),
    [
        ("stroom:lookup('nowhere', 'k')", millpond.NotFound, "map_not_found"),
        ("stroom:lookup('ip_to_host/', 'k')", millpond.Invalid, "lookup_map"),
        ("stroom:lookup('ip_to_host', 'k', 'yesterday')", millpond.Invalid, "lookup_time"),
        ("stroom:lookup('ip_to_host', 'k', '2025-01-01T00:00:00')", millpond.Invalid, "lookup_time"),
        ("stroom:lookup('ip_to_host', 'k', /nothing)", millpond.Invalid, "lookup_time"),
        ("stroom:lookup('ip_to_host')", millpond.Invalid, "lookup_arguments"),
    ],
)
def test_what_goes_wrong_is_raised_as_it_is(pond: Any, call: str, error: type[Exception], kind: str) -> None:
    with pytest.raises(error) as raised:
        transformed(pond, call)
    assert getattr(raised.value, "kind", None) == kind


def test_ignored_warnings_leave_the_answer_empty_and_a_line_in_the_log(
    pond: Any, caplog: pytest.LogCaptureFixture
) -> None:
    calls = (
        "stroom:lookup('nowhere', 'k', '2025-01-01T00:00:00.000Z', true())",
        "stroom:lookup('in_use', 'k', '', true())",
    )
    assert transformed(pond, *calls) == ["", ""]
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "nowhere" in caplog.text
    assert "does not understand its time" in caplog.text


def test_a_trace_shows_the_query_and_the_result(pond: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "millpond.xslt"):
        transformed(pond, "stroom:lookup('ip_to_host', '10.0.0.7', '2025-01-01T00:00:00.000Z', false(), true())")
    assert caplog.messages == ["lookup: map=ip_to_host key=10.0.0.7 at=2025-01-01T00:00:00.000Z found"]


def test_a_query_runs_once_in_a_transformation_and_again_in_the_next(pond: Any) -> None:
    class Counting:
        """A pond that counts the questions to its maps."""

        def __init__(self) -> None:
            self.count = 0

        def map(self, name: str) -> Any:
            holder, found = self, pond.map(name)

            class Counted:
                name, kind = found.name, found.kind

                def get(self, key: Any, at: Any = None) -> Any:
                    holder.count += 1
                    return found.get(key, at=at)

            return Counted()

    counting = Counting()
    stylesheet = etree.XML(STYLESHEET.encode())
    transform = etree.XSLT(stylesheet, extensions=xslt.functions(counting))
    transform(etree.XML(EVENTS))
    # Of each event: a host, its place (unless it has none), a team and a session. The host is looked up twice.
    assert counting.count == 3 + 3 + 3 + 3
    transform(etree.XML(EVENTS))
    assert counting.count == 2 * 12


def test_answers_remembered_are_bounded(pond: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xslt, "ANSWERS_MAX", 2)
    run = xslt._Run(pond, 0)
    for number in range(5):
        run.answer(xslt._Question("ip_to_host", f"10.0.0.{number}", None, False, False, False))
    left = [number for number in range(5) if ("ip_to_host", f"10.0.0.{number}", 0) in run.answers]
    assert left == [3, 4]
