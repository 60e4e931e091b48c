"""Tests on one Ray: each module deploys what it tests in place of what was served before."""
