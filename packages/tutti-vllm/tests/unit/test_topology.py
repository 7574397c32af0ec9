# SPDX-License-Identifier: Apache-2.0
import pytest

from tutti_vllm.start.topology import Topology


@pytest.mark.parametrize(("tensor", "replicas"), [(1, 1), (2, 1), (2, 2), (4, 1), (4, 2), (4, 4)])
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_every_part_is_stored_by_one_worker_and_loaded_by_its_group(tensor, stages, replicas):
    topology = Topology(tensor, (4,) * stages, replicas)
    workers = [topology.worker(rank, stage) for stage in range(stages) for rank in range(tensor)]
    assert workers == list(range(topology.workers))
    storing = [worker for worker in workers if topology.stores(worker)]
    # Checksums come in the order of the workers that stored, and are read by the number of the part.
    assert [topology.part(worker) for worker in storing] == list(range(topology.parts))
    for stage in range(stages):
        for rank in range(tensor):
            first = topology.worker(rank - rank % replicas, stage)
            assert topology.stores(first)
            assert topology.part(topology.worker(rank, stage)) == topology.part(first)
