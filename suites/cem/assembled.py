"""Compiles our kernels for an H100 (Triton needs no GPU for that), and prints how wide their loads of a row are."""

from __future__ import annotations

import re

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from cemverify.cem.energies import rows

if __name__ == "__main__":
    names = {"scores": "*bf16", "shared": "*bf16", "slopes": "*fp32", "scale": "fp32", "past": "i32", "length": "i32"}
    aligned = {(i,): [["tt.divisibility", 16]] for i in (0, 1, 2, 5)}  # as torch's storages, and lengths like 2,048
    for kernel in (rows._forward, rows._backward):
        source = ASTSource(kernel, {**names, "K": "constexpr", "N": "constexpr"}, {(6,): 8, (7,): 2048}, aligned)
        compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8})
        print(*sorted(set(re.findall(r"ld\.global(\S*)", compiled.asm["ptx"]))))
