"""Everything that users can set or see is documented."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client.samples import Sample

from broker.base.counters import ENTITY_SERIES
from broker.base.metrics import Metrics
from broker.cli.main import default_text
from broker.http.metrics import ENTITY_GAUGES, PARTITION_GAUGES
from broker.settings.config_shape import QueueProperties
from broker.settings.setting_types import variable_of
from broker.settings.settings import Settings

ROOT = Path(__file__).parents[2]
CONFIGURATION = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
ROWS = {
    cells[0].strip(" `"): [cell.strip() for cell in cells[1:]]
    for cells in (line.strip("| ").split(" | ") for line in CONFIGURATION.splitlines())
}


def test_every_setting_is_documented_with_its_default() -> None:
    wrong = [
        (variable_of(name), default_text(field.default))
        for name, field in Settings.model_fields.items()
        if ROWS.get(variable_of(name), [""])[0] != f"`{default_text(field.default)}`"
    ]
    assert wrong == []


def test_no_setting_is_documented_that_does_not_exist() -> None:
    documented = set(re.findall(r"\bPARTIBUS_[A-Z_]+\b", CONFIGURATION))
    assert documented - {variable_of(name) for name in Settings.model_fields} == {"PARTIBUS_CONFIG"}


def test_the_example_alert_rules_name_metrics_that_there_are() -> None:
    expressions = re.findall(r"^ +expr: (.+)$", CONFIGURATION, re.MULTILINE)
    named = {name for expression in expressions for name in re.findall(r"partibus_\w+", expression)}
    documented = set(re.findall(r"^\| `(partibus_\w+)`", CONFIGURATION, re.MULTILINE))
    assert len(expressions) >= 2 and named and named <= documented


def test_every_metric_is_documented_and_no_other() -> None:
    samples: list[Sample] = [sample for family in Metrics().registry.collect() for sample in family.samples]
    families = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in Metrics().registry.collect()
    }
    ours = (
        {name for name in families if name.startswith("partibus_")}
        | ENTITY_SERIES
        | set(ENTITY_GAUGES)
        | set(PARTITION_GAUGES)
    )
    assert samples and set(re.findall(r"^\| `(partibus_\w+)`", CONFIGURATION, re.MULTILINE)) == ours


def test_every_field_of_a_queue_in_the_configuration_file_is_documented() -> None:
    missing = [
        field.alias
        for field in QueueProperties.model_fields.values()
        if f"`{field.alias}`" not in CONFIGURATION
    ]
    assert missing == []


def test_links_in_the_documentation_lead_somewhere() -> None:
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]
    assert broken == []


def test_the_readme_shows_the_two_commands_and_every_make_target_is_explained() -> None:
    readme, makefile = (
        (ROOT / "README.md").read_text(encoding="utf-8"),
        (ROOT / "Makefile").read_text(encoding="utf-8"),
    )
    assert "make run" in readme and "make test" in readme
    targets = set(re.search(r"\.PHONY: (.*)", makefile)[1].split())  # type: ignore[index]
    assert targets - set(re.findall(r"^([\w-]+):.*## ", makefile, re.MULTILINE)) == set()
