"""What a training takes, said before it is begun: at a speed that is stated."""

from __future__ import annotations

from cemverify.processes.cores import on_one_thread
from synthetic.training.machine import peak_flops

# NVIDIA's data sheet of an H100 SXM: dense bfloat16, without sparsity.
H100_TFLOPS = 989.0
# Of which large training runs reach about so much.
GPU_UTILISATION = 0.4
# Of a core's matrix products, models of the tiny size reached 21 to 24 %, validation included, where it was measured.
CPU_UTILISATION = 0.22


def speed_at(gpu: bool, tflops: float | None) -> tuple[float, str]:
    """The useful FLOP/s of a GPU, or of one core of this machine, and in words what they are of.

    Args:
        tflops: useful TFLOP/s, if the user knows better.
    """
    if tflops is not None:
        return tflops * 1e12, f"{tflops:g} useful TFLOP/s of one device, as given"
    if not gpu:
        with on_one_thread():
            peak = peak_flops("cpu", "float32")
        of = f"the {peak / 1e9:,.0f} GFLOP/s that one core of this machine reaches"
        return CPU_UTILISATION * peak, f"{CPU_UTILISATION:.0%} of {of}"
    of = f"the {H100_TFLOPS:g} TFLOP/s of one H100"
    return GPU_UTILISATION * H100_TFLOPS * 1e12, f"{GPU_UTILISATION:.0%} of {of}"
