"""What the autoscaler needs of Ray besides its policy classes: saved state and metrics."""
