"""The figures of a server of tables for Prometheus, beside those of every service (rpc/metrics.py).

All but the last have the label `table`: `full`, a plan's `hot`, or a name of --tables:

    hummingbird_pir_queries_total                  keys answered
    hummingbird_pir_passes_total                   passes over the table
    hummingbird_pir_busy_seconds_total             seconds spent on passes
    hummingbird_pir_query_duration_seconds         histogram, from a query's arrival to its answer, waiting included
    hummingbird_pir_table_version                  updates that the table has had
    hummingbird_pir_journal_bytes                  size of the journals of updates, 0 without one
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from hummingbird.pir.serving.metrics import Metrics


class Figures(Collector):
    """Figures of all tables that a program serves, for Prometheus.

    tables: for each table's name a pair: the counters of its server, and a function that returns the table's version.
    journal_bytes: a function that returns the size in bytes of the tables' journal.
    """

    def __init__(
        self, tables: Mapping[str, tuple[Metrics, Callable[[], int]]], journal_bytes: Callable[[], int]
    ) -> None:
        self._tables, self._journal_bytes = tables, journal_bytes

    def collect(self) -> Iterator[Metric]:
        """Yield the figures as metric families of Prometheus, which calls this when it asks for them."""
        queries, passes, busy = (
            CounterMetricFamily(f"hummingbird_pir_{name}", text, labels=["table"])
            for name, text in (
                ("queries", "Keys answered."),
                ("passes", "Passes over the table."),
                ("busy_seconds", "Seconds at work on passes."),
            )
        )
        name, text = "hummingbird_pir_query_duration_seconds", "Seconds from a query's arrival to its answer."
        latency = HistogramMetricFamily(name, text, labels=["table"])
        version = GaugeMetricFamily(
            "hummingbird_pir_table_version", "Updates that the table has had.", labels=["table"]
        )
        for table, (metrics, newest) in self._tables.items():
            keys, over, seconds, buckets, waited = metrics.families()
            queries.add_metric([table], keys)
            passes.add_metric([table], over)
            busy.add_metric([table], seconds)
            latency.add_metric([table], buckets, waited)
            version.add_metric([table], newest())
        yield from (queries, passes, busy, latency, version)
        yield GaugeMetricFamily("hummingbird_pir_journal_bytes", "Size of the journal.", value=self._journal_bytes())
