"""The server on a Ray cluster: several replicas, on one machine or many, behind one address.

Ray Serve starts, watches, scales and drains; what is said here is which replica a request goes to and what
of all replicas is shown as one. Needs the extra [ray]: `serve run taslak.server.ray:application model=...`.
"""

from taslak.server.ray.application import application
from taslak.server.ray.options import Options

__all__ = ["Options", "application"]
