"""A party's figures for Prometheus, beside those of every service (rpc/metrics.py).

hummingbird_serving_batches_total                     computed batches, by lane
hummingbird_serving_images_total                      computed images
hummingbird_serving_padding_images_total              rows of a store's slots without an image
hummingbird_serving_batch_images                      histogram of the images in a batch
hummingbird_serving_queue_seconds                     histogram of a request's seconds from arrival to its batch
hummingbird_serving_computing_seconds                 histogram of a request's seconds in its batch
hummingbird_serving_waiting_requests                  requests without an outcome at this party
hummingbird_serving_slices_left{store}                slices of material in the stores of all lanes; store: "dealt", or
                                                      "kept" by a keeper
hummingbird_serving_lives_total                       sessions of this process
hummingbird_serving_model_ready{model}                1 for a model that is served, 0 for one that is only listed
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from hummingbird.rpc.metrics import SECONDS

_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Figures:
    """Counts for Prometheus what a serving process does: batches, images, waiting times, and material left.

    It lasts over all sessions of the process. registry: that of the program's `rpc.metrics.Metrics`.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"hummingbird_serving_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"hummingbird_serving_{name}", text, registry=registry)

        self._batches = counter("batches", "Batches computed.", "lane")
        self._images = counter("images", "Images computed.")
        self._padding = counter("padding_images", "Rows of a store's slots that were no client's.")
        self.lives = counter("lives", "Sessions that this process has had.")
        self._sizes = Histogram(
            "hummingbird_serving_batch_images", "Images of a batch.", buckets=_BUCKETS, registry=registry
        )
        self._queued, self._computed = (
            Histogram(f"hummingbird_serving_{name}_seconds", text, buckets=SECONDS, registry=registry)
            for name, text in (("queue", "From a request's arrival to its batch."), ("computing", "Of its batch."))
        )
        self._waiting = gauge("waiting_requests", "Requests without an outcome.")
        name, text = "hummingbird_serving_slices_left", "Material in the stores of all lanes."
        self._slices = Gauge(name, text, ["store"], registry=registry)
        name, text = "hummingbird_serving_model_ready", "Models of the file: 1 if served, 0 if only listed."
        self._models = Gauge(name, text, ["model"], registry=registry)
        self.forget()

    def model(self, title: str, ready: bool | None) -> None:
        """Show whether a model is served. title: NAME@VERSION. ready: None for one that is gone."""
        if ready is None:
            self._models.remove(title)
        else:
            self._models.labels(title).set(ready)

    def watch(self, waiting: Callable[[], float], slices: Callable[[], float], store: str) -> None:
        """Set the functions that are called, from now on, whenever Prometheus asks for these numbers.

        waiting: returns the number of requests without an outcome. slices: returns how many slices the material in the
        stores is for. store: "dealt" for stores of `deal`, "kept" for stores that `deal --keep` fills again, "" with a
        dealer, where `slices` is not called.
        """
        self._waiting.set_function(waiting)
        self._slices.clear()
        if store:
            self._slices.labels(store).set_function(slices)

    def forget(self) -> None:
        """Call the functions given to `watch` no more: they would keep a party that has left in memory."""
        self.watch(lambda: 0, lambda: 0, "")

    def answered(self, queued: float, computed: float) -> None:
        """Count a request that was answered: how long it waited, and how long it took.

        queued: seconds from its arrival to its batch. computed: seconds that its batch took.
        """
        self._queued.observe(queued)
        self._computed.observe(computed)

    def batch(self, lane: int, images: int, padding: int) -> None:
        """Count a batch that a lane has computed. images: how many. padding: rows of its slices without one."""
        self._batches.labels(lane=str(lane)).inc()
        self._images.inc(images)
        self._padding.inc(padding)
        self._sizes.observe(images)
