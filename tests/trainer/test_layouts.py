"""Any number of processes, sharing the data or the layers or both, trains the same parameters and continues another's."""

from collections.abc import Iterator

import pytest
import torch

from shared.errors import ConfigError
from tests.trainer.builders import relative_difference, tiny_model
from tests.trainer.layouts import Comparison, Layout, comparison, run
from trainer.parallel import LaunchError, Parallel, parallel_session
from trainer.tensor_parallel import cut_layers

ONE, TWO, FOUR = Layout(1), Layout(2), Layout(4)
TWO_FOR_A_LAYER, TWO_BY_TWO = Layout(1, tp=2), Layout(2, tp=2)


@pytest.fixture(scope="module")
def compared() -> Iterator[Comparison]:
    with comparison() as compared:
        yield compared


def test_every_layout_trains_the_parameters_of_one_process_and_another_continues_it(compared: Comparison) -> None:
    expected = compared.trained(ONE)
    for layout in (TWO, FOUR, TWO_FOR_A_LAYER, TWO_BY_TWO):
        assert relative_difference(compared.trained(layout), expected) < 1e-9, layout
    for saved_by, layout in ((TWO, ONE), (TWO, FOUR), (TWO_BY_TWO, ONE), (TWO, TWO_FOR_A_LAYER)):
        found = compared.continued(saved_by, layout)
        assert relative_difference(found, expected) < 1e-9, f"{layout} from the checkpoint of {saved_by}"


def test_the_processes_of_a_layer_share_rows_and_hold_half_of_it_each() -> None:
    def work(parallel: Parallel) -> None:
        assert (parallel.data.rank, parallel.data.size) == (parallel.rank // 2, 2)
        model = tiny_model()
        whole = model.model.layers[0].mlp.up_proj.weight.shape
        cut_layers(model, parallel.mesh["tp"], torch.device("cpu"))
        weight = model.model.layers[0].mlp.up_proj.weight
        assert weight.to_local().shape == (whole[0] // 2, whole[1])

    run(TWO_BY_TWO, work)


def test_heads_and_processes_that_cannot_be_shared_out_are_refused() -> None:
    with pytest.raises(LaunchError, match="tp_size is 2, but 1 processes came up"), parallel_session("cpu", tp_size=2):
        pass

    def work(parallel: Parallel) -> None:
        with pytest.raises(ConfigError, match="tp_size is 4, but num_key_value_heads is 2"):
            cut_layers(tiny_model(), parallel.mesh["tp"], torch.device("cpu"))

    run(Layout(1, tp=4), work)
