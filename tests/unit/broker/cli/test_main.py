"""The command line as a process: its output and exit codes."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from broker.cli.main import own_url
from broker.settings.setting_types import variable_of
from broker.settings.settings import Settings, load_settings
from tests.support.broker_process import REPOSITORY, BrokerProcess, configuration, queue
from tests.support.command_line import partibus


class HealthyBroker(BaseHTTPRequestHandler):
    """Answers `GET /health` and nothing else."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
        self.wfile.write(b"well")

    def log_message(self, format: str, *values: object) -> None:
        pass


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_the_version_is_printed() -> None:
    done = partibus("--version")
    assert (done.returncode, done.stdout.split()[0]) == (0, "partibus")


def test_help_shows_examples_variables_and_defaults() -> None:
    done = partibus("serve", "--help")
    assert done.returncode == 0
    for text in (
        "partibus serve --config docker/config.json",
        "PARTIBUS_AMQP_PORT",
        "5672",
        "Endpoint=sb://localhost",
        "partibus settings",
    ):
        assert text in done.stdout


def test_every_setting_is_listed_and_no_value_in_effect() -> None:
    done = partibus("settings", PARTIBUS_SAS_KEY="a-secret-key")
    assert done.returncode == 0
    assert all(variable_of(name) in done.stdout for name in Settings.model_fields)
    assert "a-secret-key" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (
            ["--amqps-port", "99999"],
            {},
            "PARTIBUS_AMQPS_PORT: Input should be less than or equal to 65535 (got '99999')",
        ),
        (
            [],
            {"PARTIBUS_FSYNC": "often"},
            "PARTIBUS_FSYNC: Input should be 'always', 'interval' or 'never' (got 'often')",
        ),
        (
            [],
            {"PARTIBUS_MEMORY_BYTES_MAX": "1048576", "PARTIBUS_TOTAL_OUTPUT_BYTES_MAX": "33554432"},
            "PARTIBUS_TOTAL_OUTPUT_BYTES_MAX is 33554432, but can be at most 16777216: ",
        ),
        (["--config", "missing.json"], {}, "missing.json: cannot be read"),
        (["--config", ""], {}, "PARTIBUS_CONFIG (or --config): is blank (got '')"),
        ([], {"PARTIBUS_CONFIG": " "}, "PARTIBUS_CONFIG (or --config): is blank (got ' ')"),
        ([], {"PARTIBUS_DATA_DIR": "one::two"}, "a folder in PARTIBUS_DATA_DIR is blank"),
        (["--log-format", "colourful"], {}, "--log-format"),
        (["--amqp-port", "many"], {}, "--amqp-port"),
        (["--no-such-option"], {}, "--no-such-option"),
        (
            [],
            {"PARTIBUS_DATA_DIR": "one:two", "PARTIBUS_MORE_DATA_DIRS": '["two"]'},
            "a data folder is named twice: ",
        ),
        (
            ["--data-dir", "one", "--data-dir", "two"],
            {"PARTIBUS_MORE_DATA_DIRS": '["two"]'},
            "a data folder is named twice: ",
        ),
    ],
)
def test_wrong_settings_end_with_code_2_and_say_what_is_wrong(
    arguments: list[str], environment: dict[str, str], message: str
) -> None:
    done = partibus("serve", *arguments, **environment)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_wrong_configuration_file_ends_with_code_2_and_names_file_field_and_reason(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(
        '{"UserConfig": {"Namespaces": [{"Name": "n", "Queues": [{"Name": "q", "Properties": '
        '{"LockDuration": "PT9M"}}]}]}}'
    )
    done = partibus("serve", "--data-dir", str(tmp_path / "data"), PARTIBUS_CONFIG=str(path))
    assert done.returncode == 2
    assert (
        f"{path}: UserConfig.Namespaces[0].Queues[0].Properties.LockDuration: The supplied lock time"
        in done.stderr
    )
    assert not (tmp_path / "data").exists()


def test_a_configuration_file_that_no_reader_can_follow_ends_with_code_2(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("[" * 100_000)
    done = partibus("serve", "--data-dir", str(tmp_path / "data"), "--config", str(path))
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        2,
        f"partibus: {path}: lists and objects stand too deep in one another",
    )


@pytest.mark.parametrize(
    ("host", "authority"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.2", "127.0.0.2"),
        ("0.0.0.0", "127.0.0.1"),
        ("::", "[::1]"),
        ("::1", "[::1]"),
        ("fe80::1%eth0", "[fe80::1%25eth0]"),
        ("localhost", "localhost"),
        ("broker.example", "broker.example"),
    ],
)
def test_the_address_of_the_health_is_one_at_which_a_broker_of_these_settings_listens(
    host: str, authority: str
) -> None:
    assert own_url(load_settings(host=host, http_port=5300)) == f"http://{authority}:5300"


@pytest.mark.parametrize(
    ("host", "listens_on", "family"),
    [
        ("127.0.0.2", "127.0.0.2", socket.AF_INET),
        ("0.0.0.0", "127.0.0.1", socket.AF_INET),
        ("localhost", "127.0.0.1", socket.AF_INET),
        # A machine without IPv6 has no such socket to query. The test above checks the addresses themselves
        # on every machine.
        *([("::", "::1", socket.AF_INET6), ("::1", "::1", socket.AF_INET6)] if has_ipv6() else []),
    ],
)
def test_the_health_is_asked_where_the_broker_listens(host: str, listens_on: str, family: int) -> None:
    with ThreadingHTTPServer((listens_on, 0), HealthyBroker, bind_and_activate=False) as server:
        server.address_family = family
        server.socket.close()
        server.socket = socket.socket(family)
        server.server_bind()
        server.server_activate()
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        # Queries to this machine bypass the proxy.
        done = partibus(
            "health",
            PARTIBUS_HOST=host,
            PARTIBUS_HTTP_PORT=str(server.server_address[1]),
            http_proxy="http://127.0.0.1:1",
        )
        server.shutdown()
        thread.join()
    assert (done.returncode, done.stdout) == (0, "well\n"), done.stderr


def test_the_health_of_a_broker_on_any_free_port_cannot_be_asked_without_its_address() -> None:
    done = partibus("health", PARTIBUS_HTTP_PORT="0")
    assert done.returncode == 2
    assert done.stderr.startswith(
        "partibus: PARTIBUS_HTTP_PORT: with 0, the broker picks a free port, which this command cannot know."
    )
    assert "--url" in done.stderr


def test_asking_for_the_health_of_something_that_is_no_broker_ends_with_code_1() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def answer() -> None:
            client, _ = server.accept()
            with client:
                client.recv(1000)
                client.sendall(b"nonsense\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        done = partibus("health", "--url", f"http://127.0.0.1:{port}")
        thread.join()
    assert done.returncode == 1
    assert done.stderr.startswith(f"partibus: http://127.0.0.1:{port}: ") and "Traceback" not in done.stderr


def test_asking_for_the_health_of_a_broker_that_is_not_there_ends_with_code_1() -> None:
    done = partibus("health", "--url", "http://127.0.0.1:1")
    assert done.returncode == 1
    assert done.stderr.startswith("partibus: http://127.0.0.1:1: ")


@pytest.mark.parametrize("url", ["localhost:99", "localhost", "ftp://localhost:99"])
def test_an_address_of_the_health_check_that_is_no_http_address_is_refused_in_words(url: str) -> None:
    """Symptom: "unknown url type: localhost"."""
    done = partibus("health", "--url", url)
    assert done.returncode == 1
    assert done.stderr == f"partibus: --url: '{url}' does not begin with http:// or https://\n"


def test_a_queue_of_the_file_that_cannot_be_created_ends_the_start_in_words(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(configuration([queue("one"), queue("two")])))
    ports = ("--amqp-port", "0", "--http-port", "0", "--amqps-port", "none")
    done = partibus(
        "serve",
        *ports,
        "--config",
        str(config),
        "--data-dir",
        str(tmp_path / "data"),
        PARTIBUS_ENTITIES_MAX="1",
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert "'two'" in done.stderr and "the limit is 1" in done.stderr


@pytest.mark.parametrize("place", ["/dev/null", "/proc/partibus"])
def test_a_data_folder_where_none_can_be_ends_with_code_2_and_names_the_variable(place: str) -> None:
    ports = ("--amqp-port", "0", "--http-port", "0", "--amqps-port", "none")
    done = partibus("serve", *ports, "--data-dir", place)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert f"partibus: PARTIBUS_DATA_DIR (or --data-dir): {place}: " in done.stderr


def test_a_port_that_is_taken_ends_with_code_1_and_says_how_to_choose_another(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = partibus(
            "serve",
            "--data-dir",
            str(tmp_path),
            "--amqp-port",
            "0",
            "--amqps-port",
            "none",
            "--http-port",
            port,
        )
    assert done.returncode == 1
    assert (
        f"partibus: 127.0.0.1:{port}: Address already in use\n" in done.stderr
        and "--http-port" in done.stderr
    )
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("host", "why"),
    [("nowhere.invalid", "no address is found for 'nowhere.invalid': "), ("192.0.2.1", "192.0.2.1:0: ")],
)
def test_a_host_that_is_not_this_machine_ends_with_code_2_and_names_the_setting(
    tmp_path: Path, host: str, why: str
) -> None:
    ports = ("--amqp-port", "0", "--amqps-port", "none", "--http-port", "0")
    done = partibus("serve", "--data-dir", str(tmp_path / "data"), *ports, PARTIBUS_HOST=host)
    assert done.returncode == 2 and f"partibus: PARTIBUS_HOST: {why}" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_a_certificate_that_cannot_be_used_ends_with_code_2_and_names_it(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("nothing")
    given = {"PARTIBUS_TLS_CERTIFICATE": str(wrong), "PARTIBUS_TLS_KEY": str(wrong)}
    done = partibus(
        "serve",
        "--data-dir",
        str(tmp_path / "data"),
        "--amqp-port",
        "0",
        "--amqps-port",
        "0",
        "--http-port",
        "0",
        **given,
    )
    assert done.returncode == 2
    assert f"{wrong}: not a certificate with its key" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_broker_starts_says_where_it_listens_answers_and_stops_cleanly(tmp_path: Path) -> None:
    queue = {"Name": "orders", "Properties": {"EnableExpress": True, "Partitioned": False}}
    with BrokerProcess(tmp_path, [queue], environment={"PARTIBUS_AMPQ_PORT": "1"}) as broker:
        done = partibus("health", "--url", broker.addresses.http_url)
        assert done.returncode == 0
        assert json.loads(done.stdout)["entities"] == {
            "orders": {"availability": "Available", "partitions": ["closed"], "size_bytes_max": 1 << 30}
        }
        assert broker.terminate() == 0
    events = [json.loads(line) for line in broker.log.splitlines()]
    assert [line["detail"] for line in events if line["event"] == "config.without_effect"] == [
        "orders: kept, without effect in this version: EnableExpress"
    ]
    assert [line["variable"] for line in events if line["event"] == "setting.unknown"] == [
        "PARTIBUS_AMPQ_PORT"
    ]
    assert events[-1]["event"] == "server.stopped"


def test_a_ready_broker_prints_its_real_ports_connection_strings_and_authority_when_asked_to(
    tmp_path: Path,
) -> None:
    command = [
        sys.executable,
        "-m",
        "broker",
        "serve",
        "--data-dir",
        str(tmp_path / "data"),
        "--show-connections",
    ]
    command += [part for port in ("amqp", "amqps", "http") for part in (f"--{port}-port", "0")]
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        too_late = threading.Timer(30, process.kill)
        too_late.start()
        try:
            first = process.stdout.readline()
            shown = dict(process.stdout.readline().strip().split("  ", 1) for _ in range(6))
        finally:
            too_late.cancel()
            process.terminate()
        ready = next(json.loads(line) for line in process.stderr if '"server.ready"' in line)
    ports = {name: ready[name].rpartition(":")[2] for name in ("amqp", "amqps", "http")}
    key = "SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE"
    assert first == "Partibus is ready; Ctrl-C stops it.\n"
    assert {name: value.strip() for name, value in shown.items()} == {
        "AMQP": f"Endpoint=sb://localhost:{ports['amqp']};{key};UseDevelopmentEmulator=true;",
        "administration, plain HTTP": f"Endpoint=sb://localhost:{ports['http']};{key};UseDevelopmentEmulator=true;",
        "administration, TLS": f"Endpoint=sb://localhost:{ports['http']};{key}",
        "AMQP over TLS": f"amqps://localhost:{ports['amqps']}",
        "certificate authority": str(tmp_path / "data" / "tls" / "ca.pem"),
        "health, metrics": f"http://localhost:{ports['http']}/health  http://localhost:{ports['http']}/metrics",
    }


def test_the_containers_health_check_asks_where_the_settings_say_and_costs_no_imports() -> None:
    probe = [sys.executable, "-I", "-S", str(REPOSITORY / "docker" / "health_probe.py")]
    with ThreadingHTTPServer(("127.0.0.1", 0), HealthyBroker) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        port = str(server.server_address[1])
        hosts = ("127.0.0.1", "0.0.0.0", "localhost")
        done = [
            subprocess.run(
                probe, env={"PARTIBUS_HOST": host, "PARTIBUS_HTTP_PORT": port}, check=False
            ).returncode
            for host in hosts
        ]
        server.shutdown()
        thread.join()
    assert done == [0, 0, 0]
    nobody = subprocess.run(
        probe, env={"PARTIBUS_HTTP_PORT": "1"}, capture_output=True, text=True, check=False
    )
    assert nobody.returncode == 1 and nobody.stderr.startswith("127.0.0.1:1: ")
    source = (REPOSITORY / "docker" / "health_probe.py").read_text(encoding="utf-8")
    defaults = load_settings()
    assert f'HOST_DEFAULT, PORT_DEFAULT = "{defaults.host}", "{defaults.http_port}"' in source


def test_the_image_asks_nothing_of_its_builder_that_older_ones_do_not_know() -> None:
    """Buildah 1.28, Podman 4.3 and Docker before 25 fail on `--start-interval`; a syntax line makes Docker
    fetch a front end."""
    dockerfile = (REPOSITORY / "Dockerfile").read_text(encoding="utf-8")
    instructions = [line for line in dockerfile.splitlines() if not line.startswith("# No ")]
    assert not any("--start-interval" in line or line.startswith("# syntax") for line in instructions)
