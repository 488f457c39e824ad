"""BudgetMix on DeepCoder-MT's template problems: as deepcoder_tiny_grpo.py, with budgets of 10%, 20%, ..., 100%.

Command:  python launch/train.py --config=configs/deepcoder_tiny_budgetmix.py --run_dir=runs/code_mix \\
          --init=run:runs/code_base
"""

from configs.deepcoder_tiny_grpo import get_config as grpo_config


def get_config():
    """The same number of updates as GRPO, with mixed budgets."""
    config = grpo_config()
    config.budget.schedule = "budget_mix"
    return config
