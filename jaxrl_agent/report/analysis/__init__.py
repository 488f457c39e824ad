"""What an analysis of checkpoints adds to the report: step quality, recovery, likelihood, dynamics and verdicts."""
