"""Keys of the namespace in files: read at the start, and again when they change."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker.entities.descriptions import AuthorizationRule
from broker.settings import key_files
from broker.settings.key_files import (
    Rules,
    WrongKeyFile,
    has_key_files,
    namespace_rules,
    warn_of_readable_files,
    watch_keys,
)
from broker.settings.settings import Settings, WrongSettings, load_settings
from tests.support.waiting import until

RULES = '[{"key_name": "reader", "primary_key": "hidden-key", "rights": ["Listen"]}]'


def rules_of(*names: str) -> str:
    """Rules with these names."""
    return "[" + ",".join(RULES[1:-1].replace("reader", name) for name in names) + "]"


def settings_with(folder: Path, **texts: str) -> Settings:
    """Settings with files of these contents."""
    files = {name: folder / name for name in texts}
    for name, text in texts.items():
        files[name].write_text(text)
    return load_settings(**files)


def test_keys_come_from_files_or_from_the_settings(tmp_path: Path) -> None:
    (root,) = namespace_rules(load_settings(sas_key="one", sas_secondary_key="two"))
    assert (root.primary_key, root.secondary_key) == ("one", "two")
    settings = settings_with(
        tmp_path, sas_key_file="three\n", sas_secondary_key_file=" four", sas_rules_file=RULES
    )
    root, reader = namespace_rules(settings)
    assert (root.primary_key, root.secondary_key) == ("three", "four")
    assert (reader.key_name, reader.primary_key, reader.rights) == (
        "reader",
        "hidden-key",
        frozenset({"Listen"}),
    )
    assert has_key_files(settings) and not has_key_files(load_settings())


@pytest.mark.parametrize(
    ("folder_mode", "file_mode", "warns"),
    [(0o755, 0o644, True), (0o755, 0o640, False), (0o700, 0o644, False)],
)
def test_a_file_that_everybody_can_read_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder_mode: int, file_mode: int, warns: bool
) -> None:
    settings = settings_with(tmp_path, sas_key_file="hidden-key", sas_rules_file=RULES)
    (tmp_path / "sas_rules_file").chmod(0o400)
    (tmp_path / "sas_key_file").chmod(file_mode)
    tmp_path.chmod(folder_mode)
    # Only root's temporary files lie in folders that others cannot look into.
    monkeypatch.setattr(type(tmp_path), "parents", property(lambda path: [tmp_path]))
    with capture_logs() as lines:
        warn_of_readable_files(settings)
    assert [(line["event"], line["path"]) for line in lines] == [
        ("keys.readable_by_everybody", str(tmp_path / "sas_key_file"))
    ] * warns
    assert "hidden-key" not in str(lines)


def test_a_file_that_has_gone_is_not_warned_of(tmp_path: Path) -> None:
    with capture_logs() as lines:
        warn_of_readable_files(load_settings(sas_key_file=tmp_path / "gone"))
    assert not lines


@pytest.mark.parametrize("bytes_of_file", [b"\xef\xbb\xbfkey\r\n", b"\xef\xbb\xbf key\n\n", b"key"])
def test_a_byte_order_mark_and_the_end_of_the_line_are_no_part_of_a_key(
    tmp_path: Path, bytes_of_file: bytes
) -> None:
    settings = settings_with(tmp_path, sas_key_file="", sas_rules_file="")
    (tmp_path / "sas_key_file").write_bytes(bytes_of_file)
    (tmp_path / "sas_rules_file").write_bytes(b"\xef\xbb\xbf" + RULES.encode())
    root, reader = namespace_rules(settings)
    assert (root.primary_key, reader.key_name) == ("key", "reader")


@pytest.mark.parametrize("key", ["sas_key", "sas_secondary_key", "sas_rules"])
def test_a_key_is_given_once(tmp_path: Path, key: str) -> None:
    value = () if key == "sas_rules" else "key"
    with pytest.raises(
        WrongSettings, match=f"PARTIBUS_{key.upper()} or PARTIBUS_{key.upper()}_FILE, not both"
    ):
        load_settings(**{key: value, f"{key}_file": tmp_path})


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("sas_key_file", "\n", "the file is empty"),
        ("sas_key_file", None, "cannot be read: No such file"),
        ("sas_key_file", "hidden-key\nhidden-key", "must hold one key, without spaces"),
        ("sas_secondary_key_file", "hidden-key 2", "must hold one key, without spaces"),
        ("sas_key_file", "hidden-key\0", "must hold one key, without spaces"),
        ("sas_key_file", "hidden-key" * 6_554, "the file is larger than 65536 bytes"),
        ("sas_rules_file", "hidden-key", "Invalid JSON"),
        ("sas_rules_file", rules_of(*map(str, range(12))), "at most 11 items"),
        ("sas_rules_file", rules_of("reader", "reader"), "two rules have the same name"),
        ("sas_rules_file", RULES.replace("}", ', "primary_key": "x"}'), "the field primary_key stands twice"),
        ("sas_rules_file", RULES.replace("Listen", "Manage"), "0: the right Manage requires"),
    ],
)
def test_a_wrong_file_is_refused_and_its_content_never_shown(
    tmp_path: Path, name: str, text: str | None, why: str
) -> None:
    settings = settings_with(tmp_path, **{name: text or ""})
    if text is None:
        (tmp_path / name).unlink()
    with pytest.raises(WrongKeyFile, match=why) as wrong:
        namespace_rules(settings)
    assert str(tmp_path / name) in str(wrong.value) and "hidden-key" not in str(wrong.value)


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["rootmanagesharedaccesskey"], "Two authorization rules have the same KeyName"),
        (["application"], "Two authorization rules have the same KeyName 'application'"),
        (["a", "b", "c"], "There are 13 authorization rules; the limit is 12"),
    ],
)
def test_keys_of_all_places_have_different_names_and_are_limited_together(
    tmp_path: Path, names: list[str], problem: str
) -> None:
    others = tuple(
        AuthorizationRule(each, "key", "", frozenset({"Send"}))
        for each in ("Application", *map(str, range(8)))
    )
    root, *_ = found = namespace_rules(load_settings(), others)
    assert found == (root, *others)
    settings = settings_with(tmp_path, sas_rules_file=rules_of(*names))
    with pytest.raises(WrongKeyFile, match=f"the keys of the namespace sbemulatorns: {problem}"):
        namespace_rules(settings, others)


async def test_a_change_of_a_file_is_noticed_and_a_wrong_file_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_files, "LOOK_S", 0.001)
    settings = settings_with(tmp_path, sas_key_file="first")
    changes: list[Rules] = []
    looks: list[Settings] = []

    def looked(settings: Settings, others: Rules) -> Rules:
        looks.append(settings)
        return namespace_rules(settings, others)

    async def a_few_more_looks() -> None:
        before = len(looks)
        await until(lambda: len(looks) > before + 3)

    monkeypatch.setattr(key_files, "namespace_rules", looked)
    with capture_logs() as lines:
        watch = asyncio.create_task(watch_keys(settings, namespace_rules(settings), changes.append))
        await a_few_more_looks()
        (tmp_path / "sas_key_file").write_text("")
        await until(lambda: any(line["event"] == "keys.unreadable" for line in lines))
        await a_few_more_looks()
        (tmp_path / "sas_key_file").write_text("second")
        await until(lambda: changes)
        await a_few_more_looks()
        watch.cancel()
    assert [root.primary_key for (root,) in changes] == ["second"]
    assert [line["event"] for line in lines] == ["keys.unreadable", "keys.changed"]


async def test_a_file_that_is_rewritten_in_steps_changes_the_keys_once_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first part of a key looks like a key, and there is nothing else by which to tell them apart."""
    monkeypatch.setattr(key_files, "LOOK_S", 0.001)
    settings = settings_with(tmp_path, sas_key_file="first")
    contents = ["first", "", "", "sec", "", "sec", "second", "second", "first", "second", "", "second"]
    changes: list[tuple[int, str]] = []
    looks = 0

    def looked(settings: Settings, others: Rules) -> Rules:
        nonlocal looks
        looks += 1
        if looks <= len(contents):
            (tmp_path / "sas_key_file").write_text(contents[looks - 1])
        return namespace_rules(settings, others)

    monkeypatch.setattr(key_files, "namespace_rules", looked)
    with capture_logs() as lines:
        watch = asyncio.create_task(
            watch_keys(
                settings,
                namespace_rules(settings),
                lambda rules: changes.append((looks, rules[0].primary_key)),
            )
        )
        await until(lambda: looks > len(contents) + 3)
        watch.cancel()
    assert changes == [(8, "second")]
    assert [line["event"] for line in lines] == [
        "keys.unreadable",
        "keys.unreadable",
        "keys.changed",
        "keys.unreadable",
    ], "once for each time that it is empty"


def test_only_a_regular_file_is_read_and_none_is_waited_for(tmp_path: Path) -> None:
    settings = settings_with(tmp_path, sas_key_file="")
    file = tmp_path / "sas_key_file"
    for make in (os.mkfifo, Path.mkdir):
        file.unlink()
        make(file)
        with pytest.raises(WrongKeyFile, match="cannot be read: it is not a regular file"):
            namespace_rules(settings)


async def test_a_file_that_hangs_does_not_keep_the_process_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: list[threading.Thread] = []
    disk_answers = threading.Event()

    def hangs(settings: Settings, others: Rules) -> Rules:
        readers.append(threading.current_thread())
        disk_answers.wait()
        return ()

    monkeypatch.setattr(key_files, "LOOK_S", 0.001)
    monkeypatch.setattr(key_files, "namespace_rules", hangs)
    watch = asyncio.create_task(watch_keys(load_settings(), (), lambda rules: None))
    await until(lambda: readers)
    watch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watch
    assert readers[0].is_alive() and readers[0].daemon, "the end of the process does not wait for daemons"
    disk_answers.set()
    await until(lambda: not readers[0].is_alive())
