"""broker/http/rule_xml.py: rules as the official clients write and read them."""

from __future__ import annotations

import pytest
from lxml import etree

from broker.entities.rules import (
    CorrelationFilter,
    FalseFilter,
    RuleDescription,
    RuleValue,
    SqlAction,
    SqlFilter,
    TrueFilter,
    ValueType,
)
from broker.entities.validation import WrongProperty
from broker.http.atom import INSTANCE, SERVICE_BUS, parse_entry
from broker.http.rule_xml import read_rule, write_rule
from broker.http.typed_values import SCHEMA
from tests.unit.broker.http.test_queue_xml import body

VALUES = (
    ("@c", RuleValue(ValueType.STRING, "red")),
    ("@n", RuleValue(ValueType.DOUBLE, 2.0)),
)
_OPENING = f'<RuleDescription xmlns="{SERVICE_BUS}" xmlns:p4="{INSTANCE}" xmlns:l28="{SCHEMA}">'


def read(inner: str, name: str = "r") -> RuleDescription:
    return read_rule(parse_entry(body(f"{_OPENING}{inner}</RuleDescription>")), name)


@pytest.mark.parametrize(
    "rule",
    [
        RuleDescription("$Default"),
        RuleDescription("r", FalseFilter(), SqlAction("SET a = @n", VALUES)),
        RuleDescription("r", SqlFilter("color = @c < 3", VALUES)),
        RuleDescription("r", CorrelationFilter("a", "b", "c", "d", "e", "f", "g", "h", VALUES)),
        RuleDescription("r", CorrelationFilter(content_type="x")),
    ],
)
def test_a_rule_survives_being_written_and_read(rule: RuleDescription) -> None:
    written = etree.tostring(write_rule(rule)).decode()
    assert 'Filter i:type="' in written and 'Action i:type="' in written, "JavaScript wants this prefix"
    assert read_rule(parse_entry(body(written)), rule.name) == rule


def test_a_rule_without_filter_and_action_matches_everything() -> None:
    assert read("") == RuleDescription("r", TrueFilter())


def test_an_empty_filter_or_action_without_a_type_counts_as_missing() -> None:
    assert read('<Filter/><Action p4:nil="true"/>') == read('<Filter p4:nil="true"/>') == RuleDescription("r")


def test_what_clients_send_beside_an_expression_is_accepted() -> None:
    sql = (
        "<SqlExpression>1=1</SqlExpression><CompatibilityLevel>20</CompatibilityLevel><Parameters/>"
        "<RequiresPreprocessing>false</RequiresPreprocessing>"
    )
    read_only = "<CreatedAt>2026-01-05T10:00:00Z</CreatedAt>"
    assert read(f'<Filter p4:type="TrueFilter">{sql}</Filter>{read_only}') == RuleDescription("r")
    assert read(f'<Filter p4:type="SqlFilter">{sql}</Filter>').filter == SqlFilter("1=1")


def test_the_name_is_that_of_the_url() -> None:
    assert read("<Name>other</Name>", "r").name == "r"


def test_the_type_decides_and_not_the_text() -> None:
    for text in ("1=0", "1>1"):
        inner = f'<Filter p4:type="FalseFilter"><SqlExpression>{text}</SqlExpression></Filter>'
        assert read(inner).filter == FalseFilter()


def test_javascript_writes_a_filter_with_its_own_prefixes_and_no_level() -> None:
    rule = read(
        '<Filter p4:type="SqlFilter"><SqlExpression>n &gt; @n</SqlExpression><Parameters>'
        "<KeyValueOfstringanyType><Key>@n</Key>"
        '<Value p4:type="l28:double">7</Value></KeyValueOfstringanyType></Parameters></Filter>'
        '<Action p4:type="SqlRuleAction"><SqlExpression>SET a = 1</SqlExpression></Action>'
    )
    assert rule.filter == SqlFilter("n > @n", (("@n", RuleValue(ValueType.DOUBLE, 7.0)),))
    assert rule.action == SqlAction("SET a = 1")


_ITEM = "<KeyValueOfstringanyType><Key>k</Key>{}</KeyValueOfstringanyType>"


@pytest.mark.parametrize(
    ("element", "inner"),
    [
        ("Filter", '<Filter p4:type="DateTimeFilter"/>'),
        ("Action", '<Action p4:type="Forget"/>'),
        (
            "CompatibilityLevel",
            '<Filter p4:type="SqlFilter"><CompatibilityLevel>x</CompatibilityLevel></Filter>',
        ),
        ("Properties", f'<Filter p4:type="CorrelationFilter"><Properties>{_ITEM}</Properties></Filter>'),
        (
            "Properties",
            '<Filter p4:type="CorrelationFilter"><Properties>'
            + _ITEM.format('<Value p4:type="l28:int">x</Value>')
            + "</Properties></Filter>",
        ),
        (
            "Properties",
            '<Filter p4:type="CorrelationFilter"><Properties>'
            + 2 * _ITEM.format("<Value>x</Value>")
            + "</Properties></Filter>",
        ),
        ("Filter", "<Filter><SqlExpression>a=1</SqlExpression></Filter>"),
        ("Filter", '<Filter type="FalseFilter"/>'),
        ("Filter", "<Filter>a=1</Filter>"),
        ("Filter", 2 * '<Filter p4:type="TrueFilter"/>'),
        ("Filter", '<Filter xmlns="" p4:type="FalseFilter"/>'),
        ("Filtr", '<Filtr p4:type="SqlFilter"><SqlExpression>a=1</SqlExpression></Filtr>'),
        ("action", '<action p4:type="SqlRuleAction"><SqlExpression>SET b=1</SqlExpression></action>'),
        ("Action", "<Action><SqlExpression>SET b=1</SqlExpression></Action>"),
        (
            "SqlExpression",
            '<Action p4:type="EmptyRuleAction"><SqlExpression>SET b=1</SqlExpression></Action>',
        ),
        ("Paramters", '<Filter p4:type="SqlFilter"><SqlExpression>a=1</SqlExpression><Paramters/></Filter>'),
        ("Label", '<Filter p4:type="TrueFilter"><Label>red</Label></Filter>'),
        ("b", '<Filter p4:type="SqlFilter"><SqlExpression>a=1<b/> AND c=2</SqlExpression></Filter>'),
        ("Lable", '<Filter p4:type="CorrelationFilter"><To>x</To><Lable>red</Lable></Filter>'),
        (
            "SqlExpression",
            '<Filter p4:type="CorrelationFilter"><To>x</To><SqlExpression>a=1</SqlExpression></Filter>',
        ),
        (
            "KeyValue",
            '<Filter p4:type="CorrelationFilter"><To>x</To><Properties><KeyValue><Key>k</Key>'
            "<Value>x</Value></KeyValue></Properties></Filter>",
        ),
    ],
)
def test_what_cannot_be_understood_is_refused_and_never_dropped(element: str, inner: str) -> None:
    with pytest.raises(WrongProperty) as caught:
        read(inner)
    assert caught.value.element == element and element in caught.value.description
