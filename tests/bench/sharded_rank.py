"""One rank of the benchmark of sharded models: trains a small transformer by FullyShardedDataParallel on
made data, and prints a JSON line with the seconds of each step, the losses, and what the gradients lacked.

sharded_rank.py gloo|exact|bounded STEPS LOSS_TARGET"""
import datetime, json, os, sys, time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

WIDTH, LAYERS, TOKENS, BATCH, WORDS = 384, 2, 16, 2, 512  # 3.9 million parameters: 16 MB
FIRST = 5  # steps that do not count
DEADLINE = datetime.timedelta(seconds=60)


class Transformer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, WIDTH)
        self.layers = torch.nn.Sequential(*(
            torch.nn.TransformerEncoderLayer(WIDTH, 6, 4 * WIDTH, 0.0, batch_first=True)
            for _ in range(LAYERS)))
        self.head = torch.nn.Linear(WIDTH, WORDS)

    def forward(self, text):
        return self.head(self.layers(self.words(text)))


def main(kind, steps, loss_target):
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    if kind == "gloo":
        dist.init_process_group("gloo", timeout=DEADLINE)
    else:
        import tarpon_torch

        dist.init_process_group("tarpon", timeout=DEADLINE)
    torch.manual_seed(1)
    policy = ModuleWrapPolicy({torch.nn.TransformerEncoderLayer})
    model = FullyShardedDataParallel(Transformer(), auto_wrap_policy=policy,
                                     device_id=torch.device("cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    hook = None
    if kind == "bounded":
        hook = tarpon_torch.bounded_fsdp_hook(model, optimizer, loss_target=loss_target)
    torch.manual_seed(100 + rank)
    seconds, losses = [], []
    for step in range(FIRST + steps):
        begin = time.monotonic()
        text = torch.randint(0, WORDS, (BATCH, TOKENS))
        optimizer.zero_grad()
        # The next word is a function of the present one.
        loss = torch.nn.functional.cross_entropy(model(text).flatten(0, 1), (text.flatten() * 7 + 3) % WORDS)
        loss.backward()
        optimizer.step()
        if step >= FIRST:
            seconds.append(time.monotonic() - begin)
            losses.append(float(loss))
    told = {"step_s": seconds, "loss": losses}
    if hook is not None:
        told["lost"] = [report.lost_fraction for report in hook.reports][FIRST:]
        told["skipped"] = sum(report.decision != "apply" for report in hook.reports)
        hook.finish()
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(told), flush=True)


main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
