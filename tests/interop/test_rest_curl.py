"""What docs/operations.md shows of messages over plain HTTP, as it is written there: a shell, openssl and
curl."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from tests.interop.programs import RUNS_WITHIN_S
from tests.support.broker_process import REPOSITORY, BrokerProcess, queue

PAGE = REPOSITORY / "docs" / "operations.md"


def test_the_commands_of_the_page_send_receive_and_count(tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    chapter = page.partition("## Messages over plain HTTP\n")[2].partition("\n## ")[0]
    sets_up, sends, locks, *others = re.findall(r"^```\n(.*?)^```", chapter, re.MULTILINE | re.DOTALL)
    with BrokerProcess(tmp_path / "broker", [queue("orders")]) as broker:
        sets_up = sets_up.replace("http://localhost:5300", broker.addresses.http_url)
        curl = 'curl() { command curl -sS --max-time 30 -w "%{stderr}%{http_code} " "$@"; }\n'
        script = "\n".join((curl, sets_up, sends, locks, sends, *others))
        done = subprocess.run(
            ["bash", "-eu"], input=script, cwd=tmp_path, capture_output=True, text=True, timeout=RUNS_WITHIN_S
        )
    assert done.stderr.split() == ["201", "201", "200", "201", "200", "200"], done
    printed, _, counts = done.stdout.partition("{")
    assert printed == "a message" * 2, "once with a lock, and once received and deleted"
    assert json.loads("{" + counts)["active"] == 0
