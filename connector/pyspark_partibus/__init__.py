"""Partibus for Spark. Spark imports every installed package named `pyspark_*`, so this module loads
nothing."""
