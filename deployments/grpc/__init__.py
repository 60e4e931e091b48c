"""The Open Inference Protocol over gRPC: a front that turns each call into an HTTP request."""
