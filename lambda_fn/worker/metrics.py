"""What Prometheus is told, read from the models when it asks: serving costs nothing for it."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from .http_server import HttpServer
from .repository import Repository
from .served_model import Life, ServedModel

METRICS_TYPE = CONTENT_TYPE_LATEST
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class WorkerMetrics(Collector):
    """The metrics of one worker."""

    def __init__(self, repository: Repository, server: HttpServer) -> None:
        self._repository = repository
        self._server = server
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self._registry)

    def describe(self) -> list[Metric]:
        return []  # the registry need not collect to know the names

    def collect(self) -> Iterator[Metric]:
        models = list(self._repository.models.values())
        requests = CounterMetricFamily("sluice_worker_requests", "Requests answered, by status.", labels=("model", "status"))
        text = "Requests and batches not computed, or not in time, by reason."
        refusals = CounterMetricFamily("sluice_worker_refusals", text, labels=("model", "reason"))
        failures = CounterMetricFamily("sluice_worker_batch_failures", "Batches that failed, by error.", labels=("model", "error"))
        for model in models:
            for status, count in list(model.tallies.requests.items()):
                requests.add_metric((model.name, str(status)), count)
            for reason, count in list(model.tallies.refusals.items()):
                refusals.add_metric((model.name, reason), count)
            for error, count in list(model.tallies.failures.items()):
                failures.add_metric((model.name, error), count)
        yield from (requests, refusals, failures)
        yield self._sizes(models)
        text = "Seconds a batch took to compute, by its size."
        seconds = SummaryMetricFamily("sluice_worker_service_seconds", text, labels=("model", "batch_size"))
        joules = SummaryMetricFamily(
            "sluice_worker_energy_joules", "Joules a batch took, by its size.", labels=("model", "batch_size")
        )
        for model in models:
            for size, measured in sorted(model.measurements.by_size.items()):
                seconds.add_metric((model.name, str(size)), measured.count, measured.seconds)
                if measured.measured_energy:
                    joules.add_metric((model.name, str(size)), measured.measured_energy, measured.joules)
        yield from (seconds, joules)
        waiting = GaugeMetricFamily("sluice_worker_waiting", "Requests that wait for their turn.", labels=("model",))
        running = GaugeMetricFamily("sluice_worker_in_progress", "Batches that are computed.", labels=("model",))
        ready = GaugeMetricFamily("sluice_worker_ready", "1 where the model is loaded.", labels=("model",))
        text = "Requests of the largest batch that the memory takes, where one failed."
        largest = GaugeMetricFamily("sluice_worker_largest_batch", text, labels=("model",))
        loading = GaugeMetricFamily("sluice_worker_load_seconds", "What the last loading took.", labels=("model",))
        for model in models:
            waiting.add_metric((model.name,), model.waiting)
            running.add_metric((model.name,), model.running)
            ready.add_metric((model.name,), model.life is Life.READY)
            if model.largest_batch is not None:
                largest.add_metric((model.name,), model.largest_batch)
            if model.load_seconds is not None:
                loading.add_metric((model.name,), model.load_seconds)
        yield from (waiting, running, ready, largest, loading)
        yield GaugeMetricFamily("sluice_worker_held_bytes", "Bodies that are read or unanswered.", self._server.held)
        yield GaugeMetricFamily("sluice_worker_connections", "Open connections.", self._server.connections)

    def _sizes(self, models: list[ServedModel]) -> Metric:
        family = HistogramMetricFamily("sluice_worker_batch_size", "Requests in a batch.", labels=("model",))
        for model in models:
            counted = [(size, measured.count) for size, measured in model.measurements.by_size.items()]
            buckets = [(f"{bound:.1f}", float(sum(count for size, count in counted if size <= bound))) for bound in SIZES]
            buckets.append(("+Inf", float(sum(count for _, count in counted))))
            family.add_metric((model.name,), buckets, float(sum(size * count for size, count in counted)))
        return family
