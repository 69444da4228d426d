"""Lists and policies among the settings."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from broker.settings.setting_types import CertificateNames, HostNames, Origins, SasRule

HOSTS, SITES = TypeAdapter[tuple[str, ...]](HostNames), TypeAdapter[tuple[str, ...]](Origins)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("bus.test, *.example.com,", ("bus.test", "*.example.com")),
        ('["bus.test"]', ("bus.test",)),
        (None, ()),
        ("*", ("*",)),
    ],
)
def test_a_list_is_separated_by_commas_or_json(given: str | None, found: tuple[str, ...]) -> None:
    assert HOSTS.validate_python(given) == found


@pytest.mark.parametrize("wrong", ["http://bus.test", "bus.test:5300", "a/b", "[1", "x" * 300])
def test_a_host_name_has_no_scheme_port_or_path(wrong: str) -> None:
    with pytest.raises(ValidationError):
        HOSTS.validate_python(wrong)


def test_a_star_in_a_certificate_needs_a_domain() -> None:
    """Clients accept no other, and `*` would be a certificate for nothing."""
    names: TypeAdapter[tuple[str, ...]] = TypeAdapter(CertificateNames)
    given = "bus, 10.0.0.1, *.example.com, *.bus.example.com."
    assert names.validate_python(given) == tuple(given.split(", "))
    with pytest.raises(ValidationError, match="at least two labels behind the star") as wrong:
        names.validate_python("*, bus, *.com, *.com.")
    assert [problem["loc"] for problem in wrong.value.errors()] == [(0,), (2,), (3,)]
    for elsewhere in ("bus.*.com", "b*.example.com", "*.*.example.com"):
        with pytest.raises(ValidationError, match="give a name or an IPv4 address"):
            names.validate_python(elsewhere)


def test_an_origin_has_a_scheme_a_host_and_at_most_a_port() -> None:
    assert SITES.validate_python("https://app.test, http://[::1]:8080") == (
        "https://app.test",
        "http://[::1]:8080",
    )
    for wrong in ("app.test", "https://app.test/path", "https://app.test:70000"):
        with pytest.raises(ValidationError, match="give an origin"):
            SITES.validate_python(wrong)


def test_a_policy_with_manage_has_all_rights() -> None:
    rule = SasRule(key_name="app", primary_key="one", rights=("Send",)).as_rule()
    assert (rule.key_name, rule.primary_key, rule.secondary_key, rule.rights) == (
        "app",
        "one",
        "",
        frozenset({"Send"}),
    )
    with pytest.raises(ValidationError, match="Manage requires the rights Send and Listen"):
        SasRule(key_name="app", primary_key="one", rights=("Manage",))
