"""Throughput, measured side by side in one run; a suite is a file here and a line of `suites.SUITES`."""
