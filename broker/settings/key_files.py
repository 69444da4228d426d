"""The keys of the namespace, some of which may be in files: secrets that a container's platform mounts.

The files are read at the start, and looked at again every LOOK_S seconds. So keys are rotated without a
restart: put the new key beside the old one, as primary and secondary key, let clients change over, and
replace the old one. A file that cannot be used at the start keeps the broker from starting; later, the keys
that were read last stay in force. New keys come into force once two looks in a row have found them: a file
that is being rewritten in place can hold the first part of a key, which looks like a key. A mount that hangs
holds up a thread of its own, and never the end of the broker.
"""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Callable
from pathlib import Path

import structlog
from pydantic import TypeAdapter, ValidationError

from broker.base.strict_json import RepeatedField, read_json
from broker.entities.descriptions import AuthorizationRule
from broker.entities.validation import WrongProperty, check_authorization_rules
from broker.settings.setting_types import SasRule, SasRules
from broker.settings.settings import Settings
from storage.workers import Workers

LOOK_S = 2.0
FILE_BYTES_MAX = 64 * 1024
_RULES: TypeAdapter[tuple[SasRule, ...]] = TypeAdapter(SasRules)
_ALL_RIGHTS = frozenset({"Manage", "Send", "Listen"})

log = structlog.get_logger("keys")

Rules = tuple[AuthorizationRule, ...]


class WrongKeyFile(ValueError):
    """A file with keys cannot be used, or not beside the other keys. The text never repeats a key."""


def namespace_rules(settings: Settings, others: Rules = ()) -> Rules:
    """The SAS policies of the namespace, the root key first, those of the configuration file (`others`) last.
    Reads the files that the settings name. Raises WrongKeyFile."""
    primary = _key(settings.sas_key_file) if settings.sas_key_file else settings.sas_key
    secondary = (
        _key(settings.sas_secondary_key_file)
        if settings.sas_secondary_key_file
        else settings.sas_secondary_key
    )
    rules = _rules(settings.sas_rules_file) if settings.sas_rules_file else settings.sas_rules
    root = AuthorizationRule(settings.sas_key_name, primary, secondary, _ALL_RIGHTS)
    found = (root, *(rule.as_rule() for rule in rules), *others)
    try:
        check_authorization_rules(found)
    except WrongProperty as wrong:
        raise WrongKeyFile(f"the keys of the namespace {settings.namespace}: {wrong.description}") from None
    return found


def warn_of_readable_files(settings: Settings) -> None:
    """Log a warning for each file with keys that every user of the machine can read."""
    for path in (settings.sas_key_file, settings.sas_secondary_key_file, settings.sas_rules_file):
        if path is not None and _everybody_reads(path):
            log.warning(
                "keys.readable_by_everybody",
                path=str(path),
                advice="Every user of this machine can read these keys. Permit only the broker's user to "
                "(chmod 400): with `mode: 0400` in Compose, with `defaultMode: 0400` in Kubernetes.",
            )


def _everybody_reads(path: Path) -> bool:
    try:
        file = path.resolve(strict=True)
        return bool(file.stat().st_mode & stat.S_IROTH) and all(
            folder.stat().st_mode & stat.S_IXOTH for folder in file.parents
        )
    except OSError:  # who cannot look at it here has read it a moment ago
        return False


def has_key_files(settings: Settings) -> bool:
    """Whether keys may change while the broker runs."""
    return bool(settings.sas_key_file or settings.sas_secondary_key_file or settings.sas_rules_file)


async def watch_keys(
    settings: Settings, rules: Rules, changed: Callable[[Rules], None], others: Rules = ()
) -> None:
    """Call `changed` with the policies whenever the files make them other ones than `rules`, and others than
    the last time, in two looks in a row. `others` are those of the configuration file."""
    wrong = ""
    before: Rules | None = rules
    """What the look before found; None if it found a wrong file."""
    loop, reader = asyncio.get_running_loop(), Workers(1, "keys")
    try:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                found = await loop.run_in_executor(reader, namespace_rules, settings, others)
            except WrongKeyFile as why:
                before = None
                if str(why) != wrong:
                    wrong = str(why)
                    log.error(
                        "keys.unreadable", reason=wrong, advice="The keys that were read last are in force."
                    )
                continue
            wrong = ""
            is_whole, before = found == before, found
            if found != rules and is_whole:
                rules = found
                log.info("keys.changed", names=[rule.key_name for rule in rules])
                changed(rules)
    finally:
        reader.shutdown(wait=False)


def _key(path: Path) -> str:
    key = _text(path).strip()
    if not key:
        raise WrongKeyFile(f"{path}: the file is empty; it must hold a key")
    if " " in key or not key.isprintable():
        raise WrongKeyFile(f"{path}: the file must hold one key, without spaces, line breaks and the like")
    return key


def _rules(path: Path) -> tuple[SasRule, ...]:
    text = _text(path)
    try:
        rules = _RULES.validate_json(text)
        read_json(text)  # pydantic takes the last of two fields
    except RepeatedField as error:
        raise WrongKeyFile(f"{path}: {error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise WrongKeyFile(
            f"{path}: {where + ': ' if where else ''}{first['msg'].removeprefix('Value error, ')}"
        ) from None
    return rules


def _text(path: Path) -> str:
    try:
        if not path.is_file() and path.exists():  # to open a pipe would wait for somebody who writes to it
            raise WrongKeyFile(f"{path}: cannot be read: it is not a regular file")
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
        if len(content) > FILE_BYTES_MAX:
            raise WrongKeyFile(f"{path}: the file is larger than {FILE_BYTES_MAX} bytes")
        return content.decode("utf-8-sig")  # some editors begin a file with a byte-order mark
    except OSError as error:
        raise WrongKeyFile(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise WrongKeyFile(f"{path}: cannot be read: it is not UTF-8") from error
