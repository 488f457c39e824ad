"""The sections of a configuration: frozen dataclasses, each setting with its help text, unit, choices and bounds."""

from __future__ import annotations

import dataclasses
from typing import Any

VISIBILITIES = ("hidden", "total", "remaining")
THINK_POLICIES = ("off", "keep", "strip_by_rows")  # see models.chat_template.Dialogue
TRUNKS = ("shared", "separate")
GIGPO_MODES = ("mean_norm", "mean_std_norm")
CODING_SOURCES = ("own", "templates", "mbpp", "humaneval", "codecontests", "deepcoder")
AGGREGATIONS = ("token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm")


def setting(default: Any, text: str, *, unit: str = "", choices: tuple = (), **bounds: float) -> Any:
    """A dataclass field with its help text, unit, allowed choices, and bounds: low, above, high, below."""
    return dataclasses.field(
        default=default, metadata={"help": text, "unit": unit, "choices": choices, "bounds": bounds}
    )


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Which network, and how it computes. With `--init=hf:DIR` the checkpoint's own shape replaces the preset."""

    preset: str = setting("lake-tiny", "name in models/sizes.py")
    dtype: str = setting("float32", "compute dtype; parameters stay float32", choices=("float32", "bfloat16"))
    remat: bool = setting(False, "recompute each layer in the backward pass")
    attention: str = setting("xla", "attention kernel", choices=("xla", "cudnn"))


@dataclasses.dataclass(frozen=True)
class LakeConfig:
    """FrozenLake's maps and rules."""

    foggy: bool = setting(True, "hide the holes and add the action `look` (departs from the paper's four moves)")
    min_size: int = setting(4, "smallest side of a map", unit="cells", low=2)
    max_size: int = setting(4, "largest side of a map", unit="cells", low=2)
    frozen_prob: float = setting(0.8, "probability that a cell is ice", above=0.0, high=1.0)
    success_rate: float = setting(1.0, "probability of the intended direction", above=0.0, high=1.0)
    start: str = setting("random", "where start and goal lie", choices=("corner", "random"))
    min_path: int = setting(2, "smallest shortest path", unit="moves", low=1)
    min_holes: int = setting(1, "fewest holes", unit="cells", low=0)
    max_holes: int = setting(6, "most holes", unit="cells", low=0)
    map_seed: int = setting(0, "seed of the map pool", low=0)


@dataclasses.dataclass(frozen=True)
class CodingConfig:
    """DeepCoder-MT's problems, tests and feedback."""

    source: str = setting("own", "where problems come from", choices=CODING_SOURCES)
    path: str = setting("", "file or folder of the problems; empty = JAXRL_DATA_DIR, an installed package, or the hub")
    families: tuple[str, ...] = setting((), "template families to draw from; empty = all")
    reward: str = setting("all", "of the last program: all hidden tests pass, or their share", choices=("all", "dense"))
    max_tests: int = setting(15, "most tests of a problem, those with the longest inputs first", unit="tests", low=2)
    cpu_seconds: float = setting(6.0, "CPU time that one test may take", unit="seconds", above=0.0)
    memory_mb: int = setting(512, "memory that one test may take", unit="MiB", low=64)
    shown_failures: int = setting(2, "failing public tests that the feedback shows", unit="tests", low=1)
    shown_characters: int = setting(300, "characters of each of their fields", unit="characters", low=10)
    pool_seed: int = setting(0, "seed of the problems drawn from templates", low=0)
    trusted: bool = setting(False, "unpickle LiveCodeBench's packed tests (source deepcoder): only from a trusted file")


@dataclasses.dataclass(frozen=True)
class TaskConfig:
    """What the agent does, in which words, and how many turns it may take at most."""

    name: str = setting("frozenlake", "name in tasks.TASKS")
    tokenizer: str = setting("lake_words", "embedded name, folder, or hub name; with --init=hf:DIR empty means DIR")
    text: str = setting("words", "prompt style: bare words, or chat messages", choices=("words", "chat"))
    think: str = setting(
        "off", "reasoning in chat: none, kept in the context, or left out of later rows", choices=THINK_POLICIES
    )
    t_max: int = setting(16, "largest budget", unit="turns", low=1)
    budget_visibility: str = setting("total", "what the agent is told of its budget", choices=VISIBILITIES)
    max_tokens: int = setting(2, "tokens that one reply may have", unit="tokens", low=1)
    max_context: int = setting(
        0, "tokens of one trajectory, for tasks that host code plays; 0 = all that the model has", unit="tokens", low=0
    )
    n_train: int = setting(2048, "training instances, at most those there are", unit="tasks", low=1)
    n_test: int = setting(128, "held-out instances, at most those there are", unit="tasks", low=1)
    lake: LakeConfig = dataclasses.field(default_factory=LakeConfig)
    coding: CodingConfig = dataclasses.field(default_factory=CodingConfig)


@dataclasses.dataclass(frozen=True)
class RolloutConfig:
    """How training trajectories are sampled."""

    prompts_per_update: int = setting(16, "groups in one update", unit="prompts", low=1)
    group_size: int = setting(8, "trajectories of one prompt", unit="trajectories", low=2)
    temperature: float = setting(1.0, "sampling temperature", low=0.0)
    top_k: int = setting(0, "keep the k likeliest tokens (the loss does not see it); 0 keeps all", unit="tokens", low=0)
    top_p: float = setting(1.0, "keep the smallest set with this probability (as top_k)", above=0.0, high=1.0)
    lanes: int = setting(32, "trajectories decoded at one time, for tasks that host code plays", unit="rows", low=1)
    shelf: int = setting(
        32, "trajectories whose cache waits while their environments run, beside the lanes", unit="rows", low=0
    )
    environments: int = setting(0, "environments run at one time; 0 = one less than cores", unit="environments", low=0)
    environment_seconds: float = setting(300.0, "longest turn of an environment", unit="seconds", above=0.0)
    answer_steps: int = setting(
        32, "until an answer is taken up, so that runs repeat; 0 = when it comes", unit="decode steps", low=0
    )
    candidates: int = setting(
        1, "sampled for each that is trained on, the first with a spread (dynamic sampling)", unit="groups", low=1
    )


@dataclasses.dataclass(frozen=True)
class BudgetConfig:
    """How each group's turn budget is drawn during training."""

    schedule: str = setting("fixed", "name in rollout.budget.BUDGET_SCHEDULES")
    caps: tuple[int, ...] = setting((), "budgets of the stages, for schedule curriculum alone", unit="turns", low=1)
    stage_updates: int = setting(50, "length of a stage, for schedule curriculum alone", unit="updates", low=1)
    uniform_share: float = setting(
        0.5, "share drawn alike whatever the headroom, for schedule headroom alone", above=0.0, high=1.0
    )
    balance: float = setting(
        0.0, "largest factor by which a budget's advantages are raised until all weigh alike; 0 turns it off", low=0.0
    )


@dataclasses.dataclass(frozen=True)
class PpoConfig:
    """Generalised advantages and the critic, for algorithm ppo alone."""

    level: str = setting("turn", "what a step is", choices=("token", "turn", "bilevel"))
    gamma: float = setting(1.0, "discount from token to token (token, bilevel)", low=0.0, high=1.0)
    lam: float = setting(0.95, "GAE's lambda from token to token (token, bilevel)", low=0.0, high=1.0)
    gamma_turn: float = setting(1.0, "discount from turn to turn (turn, bilevel)", low=0.0, high=1.0)
    lam_turn: float = setting(0.95, "GAE's lambda from turn to turn (turn, bilevel)", low=0.0, high=1.0)
    whitening: bool = setting(True, "bring the advantages of an update to mean 0 and variance 1")
    trunk: str = setting("shared", "the critic reads the policy's states, or a network of its own", choices=TRUNKS)
    width: int = setting(64, "hidden layer of the value head", unit="units", low=1)
    turns_visible: bool = setting(True, "the critic sees how many turns are left, told or not")
    value_coefficient: float = setting(0.5, "weight of the critic's loss", above=0.0)
    value_clip: float = setting(0.2, "largest move of a value that pays off in an update; 0 does not clip", low=0.0)
    warmup_updates: int = setting(10, "updates in which the critic alone learns", unit="updates", low=0)
    learning_rate: float = setting(3e-3, "of the critic's head, constant", above=0.0)


@dataclasses.dataclass(frozen=True)
class GigpoConfig:
    """Advantages among turns that started from one state, for algorithm gigpo alone."""

    gamma: float = setting(0.95, "discount of the return from a turn on", low=0.0, high=1.0)
    omega: float = setting(1.0, "weight of the step advantage", low=0.0)
    mode: str = setting("mean_norm", "whether advantages are divided by their spread", choices=GIGPO_MODES)
    episode_baseline: str = setting("trajectories", "what a group's mean counts", choices=("trajectories", "steps"))
    invalid_penalty: float = setting(0.1, "taken off a turn without a usable action; 0 is the paper's", low=0.0)


@dataclasses.dataclass(frozen=True)
class ProcessConfig:
    """What a task says of each turn, for algorithm process_reward alone."""

    omega: float = setting(1.0, "weight of the process reward", low=0.0)
    divide: bool = setting(False, "divide it by its standard deviation over the turns of the group")


@dataclasses.dataclass(frozen=True)
class AlgorithmConfig:
    """From rewards to a loss."""

    name: str = setting("grpo", "name in algorithms.ALGORITHMS")
    scale: str = setting("group", "what advantages are divided by", choices=("group", "batch", "none"))
    clip_low: float = setting(0.2, "ratios below 1 - clip_low get no gradient", low=0.0)
    clip_high: float = setting(0.28, "ratios above 1 + clip_high get no gradient", low=0.0)
    dual_clip: float = setting(0.0, "bound of the loss for negative advantages; 0 turns it off", low=0.0)
    aggregation: str = setting("seq_mean_token_sum_norm", "how token losses become one number", choices=AGGREGATIONS)
    kl_coefficient: float = setting(0.0, "weight of k3 against the reference policy; 0 needs no reference", low=0.0)
    entropy_coefficient: float = setting(0.0, "weight of the entropy bonus", low=0.0)
    importance_cap: float = setting(0.0, "cap of token-level importance weights; 0 turns them off", low=0.0)
    train_on_cut_replies: bool = setting(False, "keep replies cut by the token or context limit in the loss")
    overlong_buffer: int = setting(
        0, "last tokens of a reply's limit over which its return falls by up to 1; 0 turns it off", unit="tokens", low=0
    )
    ppo: PpoConfig = dataclasses.field(default_factory=PpoConfig)
    gigpo: GigpoConfig = dataclasses.field(default_factory=GigpoConfig)
    process: ProcessConfig = dataclasses.field(default_factory=ProcessConfig)


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """AdamW and its schedule."""

    learning_rate: float = setting(7e-4, "peak learning rate", low=0.0)
    schedule: str = setting("constant", "shape after warm-up", choices=("constant", "linear", "cosine"))
    warmup: int = setting(0, "linear warm-up", unit="optimizer steps", low=0)
    final_fraction: float = setting(0.0, "last learning rate over the peak, for linear and cosine", low=0.0, high=1.0)
    b1: float = setting(0.9, "decay of the first moment", low=0.0, below=1.0)
    b2: float = setting(0.99, "decay of the second moment", low=0.0, below=1.0)
    eps: float = setting(1e-8, "added to the root of the second moment", low=0.0)
    weight_decay: float = setting(0.01, "decoupled decay of matrices", low=0.0)
    clip_norm: float = setting(1.0, "largest global gradient norm", low=0.0)
    max_bad_updates: int = setting(10, "stop after so many non-finite optimizer steps in a row", low=1)


@dataclasses.dataclass(frozen=True)
class WarmStartConfig:
    """Supervised training on imperfect demonstrations: the stand-in for a pretrained model."""

    updates: int = setting(800, "supervised updates; 0 skips the warm start", unit="optimizer steps", low=0)
    batch: int = setting(48, "demonstrations in one update", unit="trajectories", low=1)
    demonstrations: int = setting(
        2048, "made once, for tasks that host code plays; elsewhere all are fresh", unit="trajectories", low=1
    )
    turns: int = setting(12, "length of a demonstration, not cut by the budget that it shows", unit="turns", low=1)
    random_move: float = setting(0.05, "probability of a random action", low=0.0, high=1.0)
    repeat_mistake: float = setting(0.5, "probability of another after a random, not optimal one", low=0.0, high=1.0)
    unfenced: float = setting(0.0, "share of first programs that are sent without a fence", low=0.0, high=1.0)
    repeat_unfenced: float = setting(0.0, "probability of that again, after being told", low=0.0, high=1.0)
    look_base: float = setting(0.05, "probability of a look at budget 0", low=0.0, high=1.0)
    look_slope: float = setting(0.5, "what a full budget adds to it", low=0.0)
    log_every: int = setting(20, "updates between logged lines", unit="optimizer steps", low=1)
    checkpoint_every: int = setting(200, "updates between checkpoints", unit="optimizer steps", low=1)
    optimizer: OptimizerConfig = dataclasses.field(
        default_factory=lambda: OptimizerConfig(
            learning_rate=5e-3, schedule="cosine", warmup=30, final_fraction=0.05, b2=0.999
        )
    )


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """The reinforcement-learning loop."""

    updates: int = setting(150, "policy updates (rollout + optimizer steps); 0 stops after the warm start", low=0)
    mini_batches: int = setting(2, "optimizer steps in one update, whatever the budgets were", low=1)
    micro_batch_tokens: int = setting(560, "token positions of one gradient piece on one device", unit="tokens", low=1)
    checkpoint_every: int = setting(50, "updates between checkpoints", unit="updates", low=1)
    keep_checkpoints: int = setting(2, "checkpoints kept", low=1)
    trajectories_every: int = setting(50, "updates between stored trajectories", unit="updates", low=1)
    stored_trajectories: int = setting(32, "trajectories stored each time", unit="trajectories", low=0)


@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
    """Pass@(K,T) on held-out tasks."""

    samples: int = setting(16, "trajectories of each task and enforced budget", unit="trajectories", low=1)
    budget_fractions: tuple[float, ...] = setting(
        (0.25, 0.5, 0.75, 1.0), "enforced budgets over t_max", above=0.0, high=1.0
    )
    rows: int = setting(512, "trajectories in one compiled batch", unit="trajectories", low=1)


@dataclasses.dataclass(frozen=True)
class Config:
    """Everything an experiment depends on."""

    seed: int = setting(0, "root of all randomness but the map pool's", low=0)
    init: str = setting("", "initial policy: hf:DIR, hf:FILE.gguf or run:DIR; empty for a warm start")
    mesh: str = setting("", "AXIS:SIZE list over data, fsdp, tensor; empty = all devices on data")
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    task: TaskConfig = dataclasses.field(default_factory=TaskConfig)
    rollout: RolloutConfig = dataclasses.field(default_factory=RolloutConfig)
    budget: BudgetConfig = dataclasses.field(default_factory=BudgetConfig)
    algorithm: AlgorithmConfig = dataclasses.field(default_factory=AlgorithmConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    warm_start: WarmStartConfig = dataclasses.field(default_factory=WarmStartConfig)
    train: TrainConfig = dataclasses.field(default_factory=TrainConfig)
    evaluation: EvaluationConfig = dataclasses.field(default_factory=EvaluationConfig)

    @property
    def trajectories_per_update(self) -> int:
        """Rows of one rollout, B = P * G."""
        return self.rollout.prompts_per_update * self.rollout.group_size
