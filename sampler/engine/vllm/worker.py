"""Methods that this project adds to vLLM's workers.

    weights      from a folder, or over the network in groups of torch.distributed
    memory       on a CPU: free it and allocate it again
    adapters     on a CPU: rows without one get none (`base_rows.py`)
    lifetime     a worker ends when the server's process has ended
    waiting      on a CPU: for a signal (`waiting.py`)

vLLM loads this class into each worker (`worker_extension_cls`) and calls its methods by name. Buckets are loaded as they come,
until `tandem_end`, so that an engine with half of them must stay paused.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from typing import Any

from vllm.platforms import current_platform

from sampler.engine.api.served import Announced, GroupPlace
from sampler.engine.api.updates import KV_CACHE, WEIGHTS
from sampler.engine.loading.groups import GroupError, UpdateGroups
from sampler.engine.vllm.base_rows import skip_base_rows
from sampler.engine.vllm.int8 import loads_int8, rounded_for
from sampler.engine.vllm.waiting import wait_for_signals
from shared.processes.guard import readable

log = logging.getLogger(__name__)
skip_base_rows()
if current_platform.is_cpu():
    wait_for_signals()


class WeightsWorker:
    """Mixed into vLLM's worker: `rank`, `device`, `vllm_config` and `model_runner` are the worker's."""

    rank: int
    device: Any
    vllm_config: Any
    model_runner: Any
    reload_weights: Callable[..., None]
    _tandem_groups: UpdateGroups
    _tandem_freed: dict[str, list[tuple[Any, int]]]
    _tandem_begun: bool = False

    def tandem_end_with(self, pid: int, host: str) -> None:
        """End this process after process `pid` of `host`; vLLM's core ends with its workers. Those on other hosts are Ray's
        to end."""
        if host == socket.gethostname():
            threading.Thread(target=_kill_this_after, args=(os.pidfd_open(pid),), daemon=True).start()

    def tandem_reload(self, path: str) -> None:
        if self._tandem_begun:  # and never ended: its sender is gone
            self.tandem_end()
        self.reload_weights(weights_path=path)
        self._pack_shared()

    def _pack_shared(self) -> None:
        """On a CPU vLLM multiplies by packed copies of the weights, and packs anew what it has loaded. A tied output layer is not
        loaded, only shared: without this it would go on with the old copy."""
        for layer in self.model_runner.get_model().modules():
            if hasattr(layer, "cpu_linear") and layer.weight.numel():
                layer.quant_method.process_weights_after_loading(layer)

    def tandem_join(self, place: dict[str, Any]) -> None:
        """Raises GroupError. Each worker has the rank of the engine's first one plus its own."""
        self._groups().join(GroupPlace(**{**place, "rank": place["rank"] + self.rank}))

    def tandem_leave(self, name: str) -> bool:
        return self._groups().leave(name)

    def _groups(self) -> UpdateGroups:
        if not hasattr(self, "_tandem_groups"):
            self._tandem_groups = UpdateGroups("vLLM", ("gloo", "nccl"), str(self.device))
        return self._tandem_groups

    def tandem_receive(self, group: str, bucket: dict[str, Any], *, load: bool) -> None:
        """Load one bucket; the first begins an update. `load`: whether that is allowed. Raises GroupError: nothing is changed if
        `tandem_begun` is false afterwards."""
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        tensors = self._groups().receive(group, Announced(**bucket))
        if not load:
            raise GroupError("requests hold the cache; pause with mode retract or abort first")
        model = self.model_runner.get_model()
        with set_current_vllm_config(self.vllm_config):
            if not self._tandem_begun:
                self._tandem_begun = True
                initialize_layerwise_reload(model)
            weights = iter(tensors.items())
            if loads_int8(self.vllm_config.load_config):
                weights = rounded_for(self.vllm_config.model_config, weights)
            model.load_weights(weights)

    def tandem_begun(self) -> bool:
        return self._tandem_begun

    def tandem_end(self) -> None:
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        with set_current_vllm_config(self.vllm_config):
            finalize_layerwise_reload(self.model_runner.get_model(), self.model_runner.model_config)
        self._tandem_begun = False
        self._pack_shared()

    def tandem_release(self, tags: list[str]) -> None:
        """On a CPU, where vLLM has no sleep: free the storages. Tensors, views and names stay."""
        if not hasattr(self, "_tandem_freed"):
            self._tandem_freed = {}
        tensors = {KV_CACHE: self.model_runner.kv_caches, WEIGHTS: list(self.model_runner.get_model().parameters())}
        for tag in (KV_CACHE, WEIGHTS):
            if tag in tags and tag not in self._tandem_freed:
                storages = {
                    one.untyped_storage().data_ptr(): one.untyped_storage() for one in tensors[tag] if one.numel()
                }
                kept = [(one, one.nbytes()) for one in storages.values() if one.resizable()]
                for storage, _ in kept:
                    storage.resize_(0)
                self._tandem_freed[tag] = kept
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc keeps freed blocks for itself otherwise
        if trim is not None:
            trim(0)

    def tandem_resume(self, tags: list[str]) -> None:
        for tag in tags:
            for storage, size in getattr(self, "_tandem_freed", {}).pop(tag, ()):
                storage.resize_(size)


def _kill_this_after(process: int) -> None:
    """`process`: a descriptor of pidfd_open(2), readable once the process has ended."""
    readable([process])
    log.critical("the server has ended: this worker is killed")
    os.kill(os.getpid(), signal.SIGKILL)
