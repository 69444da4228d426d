"""Run the live tests of `azure-servicebus` unchanged from its source distribution, against a broker started
here.

    python -m tests.live.python_suite [--version 7.15.0] [--write-list]

The result is compared with `python_not_yet.toml`, which lists the exact ids of the tests that do not pass
yet, by the missing feature or another reason. The list is strict in both directions: tests not listed must
pass, and listed tests must not pass. So it only gets shorter.

Messaging tests run in parallel, since they sleep most of the time; failed tests run once more, alone, because
their waits assume an idle machine. Management tests expect an empty namespace and share one broker, one after
the other. Needs the extra `live`, and root or the right to listen on ports 443 and 5671 of 127.0.0.5 and
127.0.0.6: the SDK uses no other ports.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from importlib.metadata import version as installed_version
from pathlib import Path

from tests.support.broker_process import REPOSITORY, Addresses, BrokerProcess

CACHE = REPOSITORY / ".cache" / "live"
LIST = Path(__file__).with_name("python_not_yet.toml")
VERSIONS = {"7.15.0": ("127.0.0.5", "127.0.0.6")}
"""Each version, with the addresses of its brokers: first for the messaging tests, then for the management
tests.
"""
STANDARD = Addresses(5672, 5671, 443)
SIDE_BY_SIDE = 8
"""Tests to run at a time. They sleep most of the time."""
TEST_WITHIN_S = 700
"""Some tests wait for the service to close a link that was idle for ten minutes."""
SUITE_WITHIN_S = 5_400
NOT_LIVE = ("perf_tests", "unittests")
"""Folders of the suite whose tests use no service."""
KEYS = [
    {"key_name": "live-L", "primary_key": "key-L", "rights": ["Listen"]},
    {"key_name": "live-S", "primary_key": "key-S", "rights": ["Send"]},
    {"key_name": "live-LS", "primary_key": "key-LS", "rights": ["Send", "Listen"]},
    {"key_name": "live-LMS", "primary_key": "key-LMS", "rights": ["Manage", "Send", "Listen"]},
]
"""Keys of the namespace that the suite creates in the service; here they are settings. The plugin uses the
same names.
"""


def main() -> int:
    """Run the requested suites; 0 if every result is as listed."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument(
        "--version", action="append", choices=VERSIONS, help="versions of azure-servicebus; all without one"
    )
    arguments.add_argument(
        "--write-list", action="store_true", help="write what does not pass to the list, under 'to be sorted'"
    )
    given = arguments.parse_args()
    return max(_check(version, given.write_list) for version in given.version or VERSIONS)


def _check(version: str, writes_list: bool) -> int:
    results = run_suite(version)
    listed = load_list(version)
    new = sorted(test for test, result in results.items() if result != "passed" and test not in listed)
    passing = sorted(test for test in listed if results.get(test) == "passed")
    unknown = sorted(test for test in listed if test not in results)
    for heading, tests in (
        ("does not pass and is not on the list", new),
        ("passes and must leave the list", passing),
        ("is on the list and not in the suite", unknown),
    ):
        for test in tests:
            print(f"azure-servicebus {version}: {heading}: {test}")
    if writes_list and new:
        with LIST.open("a", encoding="utf-8") as file:
            file.write(f'\n[["{version}"]]\nwaits_for = "to be sorted"\ntests = [\n{_lines(new)}]\n')
    passed = sum(result == "passed" for result in results.values())
    print(
        f"azure-servicebus {version}: {passed} passed, {len(new) + len(passing) + len(unknown)} "
        f"failed, {len(listed)} not yet"
    )
    return 1 if new or passing or unknown else 0


def load_list(version: str) -> set[str]:
    """The tests that do not pass yet with this version."""
    content = tomllib.loads(LIST.read_text(encoding="utf-8")) if LIST.exists() else {}
    return {test for group in content.get(version, []) for test in group["tests"]}


def run_suite(version: str) -> dict[str, str]:
    """Run the suite; gives the outcome of each test by id: passed, failed or skipped."""
    folder = _sources(version) / "tests"
    site = _sdk(version)
    messaging_host, management_host = VERSIONS[version]
    results: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="partibus-live-") as made:
        ignored = [f"--ignore={name}" for name in (*NOT_LIVE, "mgmt_tests")]
        with _broker(Path(made) / "messaging", messaging_host) as broker:
            results |= _pytest(folder, site, broker, messaging_host, ["-n", str(SIDE_BY_SIDE), *ignored, "."])
            again = [
                test
                for test, result in results.items()
                if result == "failed" and test not in load_list(version)
            ]
            if again:
                print(f"{len(again)} failed beside the others, and run once more alone")
                results |= _pytest(folder, site, broker, messaging_host, again)
        with _broker(Path(made) / "management", management_host) as broker:
            results |= _pytest(folder, site, broker, management_host, ["mgmt_tests"])
    return results


def _broker(folder: Path, host: str) -> BrokerProcess:
    environment = {"PARTIBUS_SAS_RULES": json.dumps(KEYS)}
    return BrokerProcess(folder, [], environment=environment, host=host, addresses=STANDARD)


def _pytest(
    folder: Path, site: Path | None, broker: BrokerProcess, host: str, arguments: Sequence[str]
) -> dict[str, str]:
    results = broker.data_dir.parent / "results.json"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(path) for path in (site, REPOSITORY) if path is not None),
        "PARTIBUS_LIVE_HOST": host,
        "PARTIBUS_LIVE_CA": str(broker.data_dir / "tls" / "ca.pem"),
        "SSL_CERT_FILE": str(broker.data_dir / "tls" / "ca.pem"),
        "PARTIBUS_LIVE_RESULTS": str(results),
    }
    options = broker.data_dir.parent / "pytest.ini"  # the suite's own options, not this repository's
    options.write_text("[pytest]\nasyncio_mode = auto\n", encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        str(options),
        "--rootdir",
        str(folder),
        "-p",
        "tests.live.python_plugin",
    ]
    command += ["-q", "--tb=short", "--timeout", str(TEST_WITHIN_S), *arguments]
    with (CACHE / f"{host}.log").open("ab") as log:
        subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            timeout=SUITE_WITHIN_S,
            check=False,
        )
    broker.check_alive()
    found: dict[str, str] = json.loads(results.read_text(encoding="utf-8"))
    return {_tidy(test): result for test, result in found.items()}


def _tidy(test: str) -> str:
    """A test's id without the parts that differ from run to run."""
    return re.sub(r"@[\w.-]+$", "", test)


def _sources(version: str) -> Path:
    """Folder of the unpacked source distribution."""
    folder = CACHE / f"azure_servicebus-{version}"
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        _pip(
            "download",
            "--no-deps",
            "--no-binary",
            "azure-servicebus",
            "--dest",
            str(CACHE),
            f"azure-servicebus=={version}",
        )
        with tarfile.open(CACHE / f"azure_servicebus-{version}.tar.gz") as archive:
            archive.extractall(CACHE, filter="data")
    return folder


def _sdk(version: str) -> Path | None:
    """Folder of this version's SDK; None if the environment's own SDK has this version."""
    if installed_version("azure-servicebus") == version:
        return None
    folder = CACHE / f"site-{version}"
    if not folder.exists():
        _pip("install", "--no-deps", "--target", str(folder), f"azure-servicebus=={version}")
    return folder


def _pip(*arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments], check=True
    )


def _lines(tests: Iterable[str]) -> str:
    return "".join(f"  {json.dumps(each)},\n" for each in tests)


if __name__ == "__main__":
    sys.exit(main())
