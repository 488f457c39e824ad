"""The stock lake (map seen, four moves) with the tiny model: the paper's game at a size that runs on a laptop.

A tiny model trained from scratch does not show the paper's pattern here: reinforcement learning removes noise at every
budget. For the pattern on a CPU see frozenlake_grpo.py (foggy lake).

Command:  python launch/train.py --config=configs/frozenlake_stock_tiny.py --run_dir=runs/stock
"""

from jaxrl_agent.config import default_config


def get_config():
    """Warm start on the stock game, then GRPO at the full budget."""
    config = default_config()
    config.task.lake.foggy = False
    config.optimizer.schedule = "linear"
    return config
