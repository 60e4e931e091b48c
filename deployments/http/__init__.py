"""The replica's HTTP interface: the Open Inference Protocol v2 as an ASGI app.

The app needs no Ray. Put any `Service` behind it and run it with an ASGI server such as uvicorn.
"""

from deployments.http.app import InferenceApp
from deployments.http.inference_protocol import InferenceRequest
from deployments.http.service import Service
from deployments.http.signature import Signature

__all__ = ["InferenceApp", "InferenceRequest", "Service", "Signature"]
