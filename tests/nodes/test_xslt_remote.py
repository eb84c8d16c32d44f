"""Stylesheets that ask maps of nodes: the same answers as of a folder, and an error when no node answers."""

from __future__ import annotations

import pytest
from lxml import etree

import millpond
from millpond import xslt
from millpond.errors import Unavailable
from tests.nodes.conftest import Served

STYLESHEET = """
<xsl:stylesheet version="1.0" xmlns:stroom="stroom" xmlns:xsl="http://www.w3.org/1999/XSL/Transform">
  <xsl:template match="/">
    <all>
      <xsl:value-of select="stroom:lookup('IP_TO_HOST', '10.0.0.7')"/>
      <xsl:copy-of select="stroom:lookup('IP_TO_HOST/LOCATION', '10.0.0.7', '2025-02-01T00:00:00.000Z')"/>
      <xsl:value-of select="stroom:lookup('TEAM', 512)"/>
      <xsl:value-of select="stroom:lookup('TEAM', 'x')"/>
      <xsl:value-of select="stroom:lookup('NOWHERE', 'x', '2025-02-01T00:00:00.000Z', true())"/>
    </all>
  </xsl:template>
</xsl:stylesheet>
"""


def test_a_stylesheet_asks_a_node(node: Served) -> None:
    with millpond.open(node.url, client_attempts=1) as pond:
        pond.create_map("ip_to_host", kind="state").load([{"key": "10.0.0.7", "value": "web-7"}])
        pond.create_map("location", kind="temporal_state").load(
            [{"key": "web-7", "effective_time": "2025-01-01T00:00Z", "value": "<Site>Leeds</Site>"}]
        )
        pond.create_map("team", kind="ranged_state").load([{"key_start": 500, "key_end": 599, "value": "Red"}])
        node.node.scheduler.run("merge")
        transform = etree.XSLT(etree.XML(STYLESHEET), extensions=xslt.functions(pond))
        output = etree.tostring(transform(etree.XML("<r/>"))).decode()
        assert output == '<all xmlns:stroom="stroom">web-7<Site>Leeds</Site>Red</all>'
        node.close()
        with pytest.raises(Unavailable):
            transform(etree.XML("<r/>"))
