"""One self-contained HTML page from run directories: headline table, curves, training, and a trajectory viewer."""
