"""BudgetMix on the foggy lake: as frozenlake_grpo.py, but each group draws its budget from 10%, 20%, ..., 100%.

Command:  python launch/train.py --config=configs/frozenlake_budgetmix.py --run_dir=runs/mix --init=run:runs/base
"""

from configs.frozenlake_grpo import get_config as grpo_config


def get_config():
    """The same number of updates as GRPO, with mixed budgets."""
    config = grpo_config()
    config.budget.schedule = "budget_mix"
    return config
