"""Other model servers, each with the same models in it, to be measured beside Sojourn."""
