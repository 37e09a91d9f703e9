"""Microseconds of flash-linear-attention's `chunk_gated_delta_rule`, the shape of `undraft bench --device cuda --op chunk`.

    python3 tools/cuda/fla_chunk.py [--tokens 8192] [--processes 12]

One sequence, H = 16, HV = 32, K = V = 128, bf16 q, k, v, gate and beta, f32 state; gate, beta's sigmoid and the L2 norm in the
kernels. The call is captured in a CUDA graph, as the bench's are; a figure is the median over replays. Needs torch, triton,
einops, fla-core and flash-linear-attention. The configurations that its autotuners choose from are compiled by so many processes
first, which fills triton's cache.
"""

import argparse
import gc
import statistics
import subprocess
import sys

REPLAYS = 15


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--processes", type=int, default=12)
    parser.add_argument("--share", type=int, help="compile this share of the configurations and end")
    return parser.parse_args()


def keep_share(share, processes):
    """Leaves every autotuner its part of the configurations, or its first."""
    from triton.runtime.autotuner import Autotuner

    for tuner in gc.get_objects():
        if isinstance(tuner, Autotuner):
            tuner.configs = tuner.configs[share::processes] or tuner.configs[:1]


def compile_in_parallel(args):
    command = [sys.executable, __file__, "--tokens", str(args.tokens), "--processes", str(args.processes), "--share"]
    workers = [subprocess.Popen([*command, str(share)], stdout=subprocess.DEVNULL) for share in range(args.processes)]
    for worker in workers:
        worker.wait()


def inputs(torch, tokens, h=16, hv=32, d=128):
    torch.manual_seed(1)
    normal = lambda *shape, **kw: torch.randn(*shape, device="cuda", **kw)
    bf16 = {"dtype": torch.bfloat16}
    return {
        "q": normal(1, tokens, h, d, **bf16),
        "k": normal(1, tokens, h, d, **bf16),
        "v": normal(1, tokens, hv, d, **bf16),
        "g": normal(1, tokens, hv, **bf16),
        "beta": normal(1, tokens, hv, **bf16),
        "A_log": normal(hv) * 0.5,
        "dt_bias": normal(hv) * 0.5,
        "initial_state": normal(1, hv, d, d) * 0.2,
    }


def microseconds(torch, run):
    """Median over replays of a graph of one call, and over calls without a graph."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    figures = []
    for call in (graph.replay, run):
        times = []
        for _ in range(REPLAYS + 2):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end) * 1e3)
        figures.append(statistics.median(times[2:]))
    return figures


def main():
    args = arguments()
    if args.share is None:
        compile_in_parallel(args)
    import torch
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    tensors = inputs(torch, args.tokens)
    options = {
        "output_final_state": True,
        "use_qk_l2norm_in_kernel": True,
        "use_beta_sigmoid_in_kernel": True,
        "use_gate_in_kernel": True,
    }
    with torch.no_grad():
        if args.share is not None:
            keep_share(args.share, args.processes)
            chunk_gated_delta_rule(**tensors, **options)
            return
        in_graph, alone = microseconds(torch, lambda: chunk_gated_delta_rule(**tensors, **options))
    print(f"FLA chunk T={args.tokens}: {in_graph:.1f} us in a graph, {alone:.1f} us a call")


if __name__ == "__main__":
    main()
