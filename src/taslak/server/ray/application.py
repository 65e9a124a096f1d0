"""The Ray Serve application: an ingress before replicas. Deployed anew, it rolls: no request is lost."""

# annotations are not postponed here: Ray Serve reads the builder's, and wants the class, not its name

from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig

from taslak.server.ray.ingress import Ingress
from taslak.server.ray.options import Options
from taslak.server.ray.replica import Replica

DRAIN_SECONDS = 120.0
"""How long answers that run may take to end when their replica has to go."""

CONTROL_CALLS = 16
"""Of metrics and health, beside the requests a replica takes."""

START_TRIES = 1
"""A model that can't be loaded is told at once, not after minutes."""


def application(options: Options) -> Application:
    """For `serve run taslak.server.ray:application model=... replicas=2`, `serve.run`, or a config file.

    Of a redeployment: the ingress's successor starts before it ends; replicas, which fill their machines, end
    before their successors start (but for max_surge_percent), a fifth or at least one at a time, and answer
    what they have first. A single replica leaves a pause, in which requests wait.
    """
    settings = options.settings
    # what waits is the replica's matter, which refuses with 429 what is too much
    most = settings.max_running + settings.max_waiting + CONTROL_CALLS
    patience = None if settings.timeout is None else settings.timeout + 10.0
    scale: dict[str, Any] = {"num_replicas": options.replicas}
    if options.max_replicas is not None:
        scale = {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=options.replicas,
                max_replicas=options.max_replicas,
                target_ongoing_requests=options.target_ongoing_requests,
                upscale_delay_s=options.upscale_delay_s,
                downscale_delay_s=options.downscale_delay_s,
            )
        }
    common: dict[str, Any] = {
        "logging_config": {"enable_access_log": False},  # the replica's log tells more
        "graceful_shutdown_timeout_s": DRAIN_SECONDS,
        "graceful_shutdown_wait_loop_s": 0.5,
    }
    replicas = serve.deployment(
        name="Replica",
        ray_actor_options={"num_cpus": options.num_cpus, "num_gpus": options.gpus},
        max_ongoing_requests=most,
        max_constructor_retry_count=START_TRIES,
        max_surge_percent=options.max_surge_percent,
        request_router_config={
            "request_router_class": "taslak.server.ray.router:SessionRouter",
            "request_router_kwargs": {"most": settings.max_running},
        },
        **scale,
        **common,
    )(Replica)
    ingress = serve.deployment(
        name="Ingress",
        num_replicas=options.ingresses,
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=1 << 20,  # it only waits
        max_surge_percent=100,
        **common,
    )(serve.ingress()(Ingress))
    return ingress.bind(replicas.bind(options), settings.max_body_bytes, patience)
