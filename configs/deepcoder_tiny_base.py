"""The base policy of DeepCoder-MT on a CPU: the tiny model after a warm start on reference solutions and mistakes.

It stands in for a pretrained model: programs of one or two lines, drawn from templates, in a vocabulary of 576 tokens,
half of which are sent without a fence, a habit that costs turns. It takes about a quarter of an hour on two cores, a
third of that for the demonstrations.

Command:  python launch/train.py --config=configs/deepcoder_tiny_base.py --run_dir=runs/code_base
"""

from jaxrl_agent.config import default_config


def get_config():
    """No reinforcement learning; the task that the other deepcoder_tiny configs share."""
    config = default_config()
    config.model.preset = "code-tiny"
    task = config.task
    task.name, task.tokenizer, task.text = "deepcoder", "code_bpe", "words"
    task.t_max, task.max_tokens, task.max_context = 5, 40, 512
    task.budget_visibility = "hidden"  # every turn is a submission: the budget changes how many, not what they are
    task.n_train, task.n_test = 7680, 128  # nearly all there are: what is learnt by heart helps little
    task.coding.source = "templates"
    task.coding.cpu_seconds, task.coding.max_tests, task.coding.shown_characters = 1.0, 6, 40
    warm = config.warm_start
    warm.updates, warm.batch, warm.demonstrations, warm.turns = 800, 32, 3584, 5
    warm.random_move, warm.repeat_mistake, warm.unfenced, warm.repeat_unfenced = 0.5, 0.5, 0.5, 0.8
    warm.optimizer.learning_rate = 3e-3
    config.train.updates = 0
    config.train.micro_batch_tokens = 800
    config.rollout.lanes, config.rollout.shelf = 48, 48
    config.evaluation.samples = 8
    return config
