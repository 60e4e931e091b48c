"""What a model costs on a device: batch times and energy."""
