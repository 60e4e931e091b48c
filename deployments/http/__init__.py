"""The replica's HTTP interface: the Open Inference Protocol v2."""
