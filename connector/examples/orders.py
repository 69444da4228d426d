# %% [markdown]
# # Orders through Partibus and Spark
# Run this cell by cell (VS Code, Jupytext or PyCharm), or as a script, while a broker runs: `make run`.

# %%
from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

os.environ["PYSPARK_PYTHON"] = sys.executable  # the Python that has the connector
ENDPOINT = os.environ.get(
    "PARTIBUS_ENDPOINT",
    "Endpoint=sb://localhost;SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE;"
    "UseDevelopmentEmulator=true;",
)
spark = (
    SparkSession.builder.master("local[2,4]")
    .config("spark.sql.shuffle.partitions", 2)
    .config("spark.python.unix.domain.socket.enabled", "true")
    .getOrCreate()
)

# %% [markdown]
# ## Write
# One message for each row. The key decides the partition, so a customer's orders stay in their order. With a
# `writeId`, a repetition of this cell is skipped.

# %%
orders = spark.range(1000).select(
    f.to_json(f.struct("id", (f.col("id") % 17 + 1).alias("amount"))).alias("body"),
    f.concat(f.lit("customer-"), f.col("id") % 10).alias("partition_key"),
)
orders.write.format("partibus").options(endpoint=ENDPOINT, entity="queue.1", writeId="orders-1").mode(
    "append"
).save()

# %% [markdown]
# ## Look
# A batch query reads everything that is there and changes nothing. Ask for the columns that you need: it is
# faster.

# %%
waiting = (
    spark.read.format("partibus")
    .options(endpoint=ENDPOINT, entity="queue.1")
    .schema("body binary, partition_key string, partition int, enqueued_time timestamp")
    .load()
)
waiting.groupBy("partition").count().orderBy("partition").show(16)

# %% [markdown]
# ## Stream
# The cursor `sums` remembers in the broker how far Spark has committed. `settle=complete` would remove the
# messages, too. Without a checkpoint each run is a new query, so it takes the cursor over from the last one.

# %%
stream = (
    spark.readStream.format("partibus")
    .options(endpoint=ENDPOINT, entity="queue.1", cursor="sums", cursorTakeover="true")
    .option("startingOffsets", "earliest")
    .schema("body binary, partition_key string")
    .load()
)
order = f.from_json(f.col("body").cast("string"), "id long, amount long")
sums = stream.groupBy("partition_key").agg(f.count("*").alias("orders"), f.sum(order.amount).alias("amount"))
query = (
    sums.writeStream.outputMode("complete")
    .format("memory")
    .queryName("sums")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
spark.table("sums").orderBy("partition_key").show()

# %% [markdown]
# ## Progress
# Positions and backlog are in the query's progress.

# %%
source = query.lastProgress["sources"][0]
print(source["endOffset"], source["latestOffset"])
spark.stop()
