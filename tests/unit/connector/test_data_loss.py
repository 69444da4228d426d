from __future__ import annotations

import pytest

from pyspark_partibus.data_loss import report_loss
from pyspark_partibus.errors import DataLoss
from pyspark_partibus.options import source_options

OPTIONS = {"endpoint": "amqp://host", "entity": "orders"}


def test_a_loss_ends_the_query_and_names_the_option() -> None:
    with pytest.raises(DataLoss, match=r"^it is gone. With option failOnDataLoss=false the query goes on"):
        report_loss(source_options(OPTIONS), "it is gone")


def test_a_user_who_is_content_with_what_is_there_gets_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    report_loss(source_options({**OPTIONS, "failOnDataLoss": "false"}), "it is gone")
    assert caplog.messages == ["it is gone. Going on with what is there"]
