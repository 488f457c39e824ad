"""BudgetMix with exact process rewards on the foggy lake: the horizon of Q_h is what is left of the group's budget.

Command:  python launch/train.py --config=configs/frozenlake_budgetmix_oracle_q.py --run_dir=DIR --init=run:DIR
"""

from configs.frozenlake_oracle_q import get_config as oracle_config


def get_config():
    """Budgets from 10%, 20%, ..., 100%, told and enforced."""
    config = oracle_config()
    config.budget.schedule = "budget_mix"
    return config
