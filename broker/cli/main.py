"""The command line: `partibus serve`, and small helpers around it.

Reads options, environment and configuration file, reports what is wrong with them, and starts `server.py`.
Exit codes: 0 the broker stopped as asked; 1 something outside it failed (a port is taken, a disk is broken);
2 the settings or the configuration file are wrong.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import http.client
import importlib.metadata
import ipaddress
import os
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, NoReturn
from urllib.parse import quote

import structlog
import typer
from rich.console import Console
from rich.table import Table

from broker.base.errors import Refused
from broker.base.sockets import WrongHost
from broker.cli.check import CHECK_EPILOG, check, named_folders
from broker.cli.repair import REPAIR_EPILOG, repair
from broker.cli.welcome import welcome
from broker.settings.certificates import TlsFiles, WrongCertificate
from broker.settings.config_file import ConfigFile, WrongConfigFile, load_config_file
from broker.settings.key_files import WrongKeyFile
from broker.settings.logs import configure_logging, warn_development_key
from broker.settings.setting_types import ENVIRONMENT_PREFIX, variable_of
from broker.settings.settings import (
    Settings,
    WrongSettings,
    load_settings,
    refuse_blank,
    unknown_variables,
)
from storage.errors import StorageError

_SERVE_EPILOG = """
Examples:

* `partibus serve --config docker/config.json`
* `partibus serve --host 0.0.0.0 --data-dir /var/lib/partibus --log-format json`
* `PARTIBUS_FSYNC=interval PARTIBUS_AMQP_PORT=0 partibus serve`

Then connect any Service Bus SDK with
`Endpoint=sb://localhost;SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;`

Every other setting is a `PARTIBUS_...` variable too: `partibus settings` lists them.
"""

_WRONG_SETTINGS = (WrongHost, WrongCertificate, WrongConfigFile, WrongKeyFile, WrongSettings)
PORTS_ADVICE = (
    "Another program is listening there. Choose other ports with --amqp-port, --amqps-port and "
    "--http-port; 0 picks a free one."
)

app = typer.Typer(
    name="partibus",
    help=(
        "A partitioned service bus: an AMQP 1.0 broker that behaves like Azure Service Bus partitioned "
        "queues."
    ),
    epilog="`partibus serve --help` has examples; `partibus settings` lists every setting.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # they print local variables, and keys are among those
    rich_markup_mode="markdown",
)


class LogFormatOption(enum.StrEnum):
    """How log lines look."""

    console = "console"
    json = "json"


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"partibus {importlib.metadata.version('partibus')}")
        raise typer.Exit


@app.callback()
def partibus(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """A partitioned service bus."""


@app.command(epilog=_SERVE_EPILOG)
def serve(
    context: typer.Context,
    config: Annotated[
        str | None,
        typer.Option(
            envvar=variable_of("config"),
            show_default=False,
            metavar="PATH",
            help="Entities to create at the start: the emulator's `config.json`, with our additions.",
        ),
    ] = None,
    data_dir: Annotated[
        list[str] | None,
        typer.Option(
            envvar=variable_of("data_dir"),
            show_default="data",
            metavar="PATH",
            help=(
                "Folder for the logs, the catalogue and the generated certificate. Repeat the option for "
                "each disk: new queues are spread over all of them."
            ),
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            envvar=variable_of("host"),
            show_default="127.0.0.1",
            help="Address to listen on; `0.0.0.0` means all IPv4 addresses.",
        ),
    ] = None,
    amqp_port: Annotated[
        int | None,
        typer.Option(
            envvar=variable_of("amqp_port"), show_default="5672", help="AMQP port. 0 picks a free one."
        ),
    ] = None,
    amqps_port: Annotated[
        str | None,
        typer.Option(
            envvar=variable_of("amqps_port"),
            show_default="5671",
            metavar="INTEGER|none",
            help="AMQP over TLS. 0 picks a free port, `none` turns it off.",
        ),
    ] = None,
    http_port: Annotated[
        int | None,
        typer.Option(
            envvar=variable_of("http_port"),
            show_default="5300",
            help="Administration, health, metrics and WebSocket, plain and TLS. 0 picks a free port.",
        ),
    ] = None,
    log_format: Annotated[
        LogFormatOption | None,
        typer.Option(
            envvar=variable_of("log_format"),
            show_default="console in a terminal, otherwise json",
            help="How log lines look.",
        ),
    ] = None,
    show_connections: Annotated[
        bool | None,
        typer.Option(
            "--show-connections/--hide-connections",
            show_default="shown in a terminal",
            help="Print addresses and connection strings once the broker is ready.",
        ),
    ] = None,
) -> None:
    """Run the broker until SIGTERM or Ctrl-C; open requests are finished first."""
    options = {
        "host": host,
        "amqp_port": amqp_port,
        "http_port": http_port,
        "log_format": log_format.value if log_format else None,
    }
    given: dict[str, object] = {name: value for name, value in options.items() if value is not None}
    if amqps_port is not None:
        given["amqps_port"] = None if amqps_port == "none" else amqps_port
    try:
        if (folders := named_folders(context, data_dir)) is not None:
            given["data_dir"] = folders
        settings, file = _load(config, given)
    except (WrongSettings, WrongConfigFile) as wrong:
        _fail(wrong, 2)
    configure_logging(settings.log_format, settings.log_level)
    _warn(settings, file)
    _run(settings, file, is_shown=sys.stdout.isatty() if show_connections is None else show_connections)


def _load(config: str | None, given: Mapping[str, object]) -> tuple[Settings, ConfigFile | None]:
    """The settings, with the options `given`, and the configuration file. Raises WrongSettings and
    WrongConfigFile."""
    refuse_blank(f"{variable_of('config')} (or --config)", config)
    settings = load_settings(**given)
    if config is None:
        return settings, None
    file = load_config_file(Path(config), settings)
    if "namespace" not in settings.model_fields_set:
        settings = settings.model_copy(update={"namespace": file.first.namespace})
    return settings, file


def _run(settings: Settings, file: ConfigFile | None, *, is_shown: bool) -> None:
    """Run the broker to its end. `is_shown`: print addresses and connection strings once it is ready."""
    from broker import server

    def announce(addresses: Mapping[str, str], files: TlsFiles) -> None:
        for line in welcome(settings, addresses, files.authority):
            typer.echo(line)

    try:
        server.run(settings, file, announce if is_shown else None)
    except (OSError, *_WRONG_SETTINGS, StorageError, ExceptionGroup) as error:
        cause = _cause(error)
        if cause is None:
            raise
        reason: object = cause
        is_wrong_place = False
        if isinstance(cause, WrongHost):
            reason = f"{variable_of('host')}: {cause}"
        elif isinstance(cause, OSError) and cause.errno == errno.EADDRINUSE:
            reason = f"{cause.strerror}\n{PORTS_ADVICE}"
        elif _is_about_a_place(cause):
            reason = f"{variable_of('data_dir')} (or --data-dir): {cause}"
            is_wrong_place = not all(map(os.path.isdir, settings.data_dirs))
        _fail(reason, 2 if isinstance(cause, _WRONG_SETTINGS) or is_wrong_place else 1)


@app.command()
def health(
    url: Annotated[
        str,
        typer.Option(
            help="Address of the HTTP port, such as http://localhost:5300.",
            show_default=f"{variable_of('host')} and {variable_of('http_port')}",
        ),
    ] = "",
) -> None:
    """Check whether a running broker serves: exit code 0 if it does, else 1. For container health checks."""
    try:
        address = url or own_url(load_settings())
    except WrongSettings as wrong:
        _fail(wrong, 2)
    if not address.lower().startswith(("http://", "https://")):
        _fail(f"--url: '{address}' does not begin with http:// or https://", 1)
    # Nobody asks a broker of this machine by way of a proxy, though a container may have one set.
    proxies = urllib.request.ProxyHandler(None if url else {})
    try:
        with urllib.request.build_opener(proxies).open(f"{address.rstrip('/')}/health", timeout=3) as answer:
            typer.echo(answer.read().decode())
    except (OSError, ValueError, http.client.HTTPException) as error:
        _fail(f"{address}: {error}", 1)


@app.command("settings")
def list_settings() -> None:
    """List every setting: its environment variable, default and meaning. The values in effect are not shown:
    keys are among them."""
    table = Table("Variable", "Default", "Meaning", show_lines=False)
    for name, field in Settings.model_fields.items():
        table.add_row(variable_of(name), default_text(field.default), field.description or "")
    Console(width=None if sys.stdout.isatty() else 200).print(table)


app.command(epilog=CHECK_EPILOG)(check)
app.command(epilog=REPAIR_EPILOG)(repair)


def default_text(value: object) -> str:
    """A setting's default as its variable would spell it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(value) or "[]"
    return str(value)


def own_url(settings: Settings) -> str:
    """The HTTP port of a broker on this machine that has the same settings. Raises WrongSettings."""
    if settings.http_port == 0:
        raise WrongSettings(
            f"{variable_of('http_port')}: with 0, the broker picks a free port, which this command cannot "
            "know. The broker's log names it (`server.ready`): give that address with --url"
        )
    host = settings.host
    with contextlib.suppress(ValueError):  # a name
        given = ipaddress.ip_address(host)
        if given.is_unspecified:  # it listens on every address, loopback among them
            host = "127.0.0.1" if given.version == 4 else "::1"
    if ":" in host:
        host = f"[{quote(host, safe=':')}]"
    return f"http://{host}:{settings.http_port}"


def _warn(settings: Settings, file: ConfigFile | None) -> None:
    log = structlog.get_logger("broker")
    for name in unknown_variables():
        log.warning(
            "setting.unknown",
            variable=name,
            advice=(
                f"No setting has this name; `partibus settings` lists all {ENVIRONMENT_PREFIX}… variables."
            ),
        )
    for warning in file.warnings if file is not None else ():
        log.warning("config.without_effect", file=str(file.first.path) if file else None, detail=warning)
    warn_development_key(settings)
    for each in file.others if file is not None else ():
        warn_development_key(each.settings)


def _is_about_a_place(error: Exception) -> bool:
    """Whether an error may mean that a data folder cannot be where the settings say."""
    reason = error.__cause__
    return (
        isinstance(error, StorageError)
        and isinstance(reason, OSError)
        and reason.errno in (errno.ENOTDIR, errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS)
    )


def _cause(error: Exception) -> Exception | None:
    """The error of the user or the system, taken out of the groups that tasks wrap it in; None if the fault
    is ours."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    known = (OSError, *_WRONG_SETTINGS, StorageError, Refused)
    return error if isinstance(error, known) else None


def _fail(reason: object, code: int) -> NoReturn:
    for line in str(reason).splitlines():
        typer.echo(f"partibus: {line}", err=True)
    if code == 2:
        typer.echo(
            "Nothing was started. `partibus serve --help` and docs/configuration.md describe the settings.",
            err=True,
        )
    raise typer.Exit(code)


def main() -> None:
    """The console script."""
    app(prog_name="partibus")
