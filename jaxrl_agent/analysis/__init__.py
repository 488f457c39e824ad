"""From probes and run directories to numbers and verdicts: numpy only, files in, files out."""
