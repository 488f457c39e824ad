"""Budgets where there is most to gain on the foggy lake: as frozenlake_budgetmix.py, drawn by headroom.

Command:  python launch/train.py --config=configs/frozenlake_headroom.py --run_dir=runs/headroom --init=run:runs/base
"""

from configs.frozenlake_grpo import get_config as grpo_config


def get_config():
    """Half of the draws are BudgetMix's, half go by the gap to the best possible success at each budget."""
    config = grpo_config()
    config.budget.schedule = "headroom"
    return config
