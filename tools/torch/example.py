"""Trains a small model on made data, its gradients bounded by Tarpon.

torchrun --nproc_per_node 2 example.py

The torchrun of Debian 12 needs `-r 1 -t 1` as well: else it ends with an AttributeError in `to_map`.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import tarpon_torch


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(32, 256), torch.nn.ReLU(), torch.nn.Linear(256, 2)
    )
    ddp = DistributedDataParallel(model, broadcast_buffers=False)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    hook = tarpon_torch.bounded_hook(ddp, optimizer, loss_target=0.001)

    torch.manual_seed(dist.get_rank())  # each rank has data of its own
    for step in range(200):
        inputs = torch.randn(64, 32)
        labels = (inputs.sum(1) > 0).long()
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(ddp(inputs), labels)
        loss.backward()
        optimizer.step()
        if step % 50 == 49 and dist.get_rank() == 0:
            report = hook.reports[-1]
            print(
                f"step {step + 1}: loss {loss.item():.3f}, lost {report.lost_fraction:.3%}, "
                f"longest bucket {report.seconds * 1e3:.1f} ms"
            )
    equal = hook.compare().equal
    if dist.get_rank() == 0:
        print("all ranks have one model" if equal else "the models differ")
    hook.finish()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
