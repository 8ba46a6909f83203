"""A user's own losses: registered by name, selected by a setting, and refused with the line of a mistake."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from shared.errors import ConfigError, OwnCodeFailed
from tests.trainer.test_losses import batch
from trainer.losses import LossConfig, LossName, Terms, TokenLoss, compute, register_loss, registry
from trainer.settings.config import TrainerConfig

HERE = "tests/trainer/test_own_losses.py:"
MODULE = """
from trainer.losses import LossConfig, Terms, register_loss

@register_loss("plain")
def plain(t: Terms, config: LossConfig):
    return -t.advantage_E * t.new_logprob_E
"""


@pytest.fixture(autouse=True)
def own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that a test registers are forgotten with it."""
    monkeypatch.setattr(registry.LOSSES, "_known", dict(registry.LOSSES._known))


def plain(t: Terms, config: LossConfig) -> Tensor:
    return -t.advantage_E * t.new_logprob_E


def test_a_loss_of_ones_own_is_weighed_corrected_and_summed_as_a_bundled_one() -> None:
    register_loss("plain")(plain)
    whole, denominators = batch(0)
    settings: dict[str, Any] = {"rollout_is": "token", "loss_aggregation": "token-mean", "kl_coefficient": 0.1}
    bundled, expected = compute(whole, denominators, LossConfig(loss=LossName.REINFORCE, **settings))
    own, outcome = compute(whole, denominators, LossConfig(loss="plain", **settings))
    assert own.item() == bundled.item()
    assert torch.equal(outcome.policy_E, expected.policy_E)
    assert torch.equal(*(torch.autograd.grad(loss, whole.new_logprob_E)[0] for loss in (own, bundled)))


def test_a_loss_sees_the_counts_of_the_step_its_settings_and_may_mark_what_it_clips() -> None:
    @register_loss("own_mean", whole_trajectories=True)
    def own_mean(t: Terms, config: LossConfig) -> TokenLoss:
        high_E = t.log_r_E.detach() > config.epsilon_higher
        mean_E = t.trajectory_mean(t.log_r_E)[t.trajectory_E]
        loss_E = -mean_E * t.advantage_E / t.denominators.num_tokens
        return TokenLoss(loss_E, high_E, torch.zeros_like(high_E), t.advantage_E)

    whole, denominators = batch(0)
    config = LossConfig(loss="own_mean", loss_aggregation="token-sum")
    assert config.needs_whole_trajectories
    loss, outcome = compute(whole, denominators, config)
    log_r_E = (whole.new_logprob_E - whole.old_logprob_E).detach()
    means = torch.stack([log_r_E[whole.trajectory_E == t].mean() for t in range(5)])
    expected = -(means[whole.trajectory_E] * whole.advantage_E).sum() / 60
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    assert torch.equal(outcome.too_high_E, log_r_E > 0.27)


def test_the_settings_import_the_module_and_take_its_loss(tmp_path: Path) -> None:
    (tmp_path / "tests_own_losses_module.py").write_text(MODULE)
    given = ["--run", "r", "--db_connection_string", "x", "--model_name_or_path", ".", "--loss_calculater", "plain"]
    with pytest.raises(ConfigError, match=r"loss_calculater is 'plain'; .*loss 'plain' is unknown"):
        TrainerConfig.load(given)
    config = TrainerConfig.load([*given, "--loss_modules", f'["{tmp_path}/tests_own_losses_module.py"]'])
    assert config.loss.loss == config.snapshot()["loss"] == "plain"
    assert not config.without_effect(), "a loss of one's own may look at every setting"
    with pytest.raises(ConfigError) as refused:
        TrainerConfig.load([*given, "--loss_modules", '["no.such"]'])
    assert "loss_modules: 'no.such' cannot be imported: ModuleNotFoundError" in str(refused.value)
    assert "is unknown" not in str(refused.value)


@pytest.mark.parametrize(("name", "nearest"), [("grpo", "GRPO"), ("GSPO_token", "GSPO-token"), ("minrl", "MINIRL")])
def test_an_unknown_name_gets_the_nearest_one(name: str, nearest: str) -> None:
    with pytest.raises(ValidationError, match=f'loss {name!r} is unknown; did you mean "{nearest}"[?] Expected one of'):
        LossConfig(loss=name)


def test_a_name_belongs_to_one_loss() -> None:
    assert register_loss("plain")(register_loss("plain")(plain)) is plain
    with pytest.raises(ConfigError, match="loss 'GRPO' is registered twice"):
        register_loss("GRPO")(plain)


def misspelt(t: Terms, config: LossConfig) -> Tensor:
    return -t.advantages * t.new_logprob_E  # type: ignore[attr-defined,no-any-return]  # what is tested


def summed(t: Terms, config: LossConfig) -> Tensor:
    return plain(t, config).sum()


def number(t: Terms, config: LossConfig) -> Tensor:
    return 0.0  # type: ignore[return-value]  # what is tested


def infinite(t: Terms, config: LossConfig) -> Tensor:
    return torch.where(t.advantage_E > 0, t.new_logprob_E / 0.0, t.new_logprob_E)


def constant(t: Terms, config: LossConfig) -> Tensor:
    return plain(t, config).detach()


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (misspelt, f"failed: AttributeError: 'Terms' object has no attribute 'advantages'; at {HERE}"),
        (summed, r"returned a tensor of shape \(\); expected one value for each entry, a tensor of shape \(60,\)"),
        (number, r"returned a float; expected one value for each entry, a tensor of shape \(60,\)"),
        (infinite, r"is -?inf at \d+ of 60 entries, first at entry \d+ \(new_logprob_E -?\d.*, advantage_E \d"),
        (constant, "has no gradient: its result does not depend on new_logprob_E"),
    ],
)
def test_a_mistake_in_a_loss_names_its_line(loss: Callable[..., Tensor], message: str) -> None:
    register_loss("wrong")(loss)
    whole, denominators = batch(0)
    with pytest.raises(OwnCodeFailed, match=f"^loss 'wrong' {message}") as caught:
        compute(whole, denominators, LossConfig(loss="wrong"))
    assert re.search(rf"; at {HERE}\d+(, in misspelt: return -t.advantages|: def {loss.__name__}\()", str(caught.value))
