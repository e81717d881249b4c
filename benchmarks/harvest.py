"""Everything that needs a GPU, in stages: each has a time limit, runs once, and says why if it is skipped.

A stage runs in its own process and writes what it has found so far into FOLDER/STAGE.json. If it is stopped at its
limit, that file remains; a finished stage is not run again. The result file and the page are made from the stages in
the folder.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import attention, decoding, training
from benchmarks.measuring import Findings
from benchmarks.rehearsal import absent_gpu, traffic
from cemverify.cem import presets
from cemverify.cem.presets import CONTEXT
from cemverify.console.errors import UsageError
from cemverify.console.streams import note
from cemverify.results import envelope, provenance
from cemverify.results.envelope import ResultError, Table
from cemverify.results.provenance import Maker
from cemverify.results.tables import markdown
from synthetic.training.frames import shared_preconditioners
from synthetic.training.machine import compiles, peak_flops, synchronise

_GRACE = 15.0  # seconds beyond its limit in which a stage may still end by itself


@dataclass(frozen=True)
class Setting:
    """Where a stage runs, and how much it may do."""

    device: str  # "cpu" or "cuda"
    seconds: float  # the stage's limit
    folder: Path  # for the files that it makes

    @property
    def small(self) -> bool:
        """Whether to use the small sizes for a CPU, which only show that a stage works."""
        return not self.device.startswith("cuda")

    def scaled(self, large: Any, small: Any) -> Any:
        """The first on a GPU, the second elsewhere."""
        return small if self.small else large


@dataclass(frozen=True)
class Stage:
    """One part of the harvest."""

    name: str
    run: Callable[[Setting], Iterator[Findings]]  # yields its growing findings
    seconds: float  # its limit on a GPU; on a CPU a third of it, or `on_cpu`
    owed: str | None  # what a machine without a GPU cannot measure; None if nothing
    on_cpu: float | None = None

    def limit(self, device_: str) -> float:
        """Its limit on this device, in seconds."""
        return self.seconds if device_.startswith("cuda") else self.on_cpu or self.seconds / 3


# --- the stages -----------------------------------------------------------------------------------


def rehearse(setting: Setting) -> Iterator[Findings]:
    """Paths of the reference on a simulated GPU: a third of them, or a sixth if there is a real one."""
    if why := absent_gpu.missing():
        yield Findings(skipped=why)
        return
    part = ["benchmarks/rehearsal", "--each", setting.scaled("6", "3")]
    part += ["-k", setting.scaled("path or fault or 86M and t2", "path or fault or t2")]
    yield _tested("A GPU rehearsed on fake tensors", part, setting)


def count(setting: Setting) -> Iterator[Findings]:
    """Kernels and bytes of a step of the 86M models, by part, counted without a GPU, to explain measured times."""
    if why := absent_gpu.missing():
        yield Findings(skipped=why)
        return
    file = setting.folder / "traffic.json"
    file.unlink(missing_ok=True)
    code, text = _run(["-m", "benchmarks.rehearsal.traffic", str(file)], setting.seconds)
    if not file.exists():
        raise UsageError(_why(code, text))
    counted = envelope.read_json(file)
    yield Findings([traffic.table(counted["training"])], {"traffic": counted})


def _counted(setting: Setting, what: str) -> Any:
    """The counts of the stage `counts` for training or attention; None if it has not run."""
    counts = read_stage(setting.folder, "counts")
    return None if counts is None else counts["data"].get("traffic", {}).get(what)


def _tested(title: str, options: Sequence[str], setting: Setting) -> Findings:
    """A run of pytest with these options: its summary, and the failed tests."""
    code, text = _run(["-m", "pytest", "-q", *options], setting.seconds)
    lines = text.splitlines()
    summary = next((line for line in reversed(lines) if re.search(r"\d+ (passed|failed|skipped).* in ", line)), "")
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    rows = [[summary.strip("= ") or f"no summary (exit code {code})", "; ".join(failed)]]
    data = {"exit_code": code, "summary": summary.strip("= "), "failed": failed, "output": text[-4000:]}
    return Findings([Table(title, ("summary", "failed"), rows)], data)


def _why(code: int | None, text: str) -> str:
    """Why a program did not end normally: stopped at its limit, or the last line that it printed."""
    last = (text.strip().splitlines() or [f"it ended with {code} and said nothing"])[-1]
    return "stopped at its limit" if code is None else last


def device(setting: Setting) -> Iterator[Findings]:
    """The speed of the device at matrix products, and at reading and writing."""
    precisions = setting.scaled(("float64", "float32", "bfloat16"), ("float64", "float32"))
    speeds = {name: peak_flops(setting.device, name) for name in precisions}
    a = torch.ones(setting.scaled(2**30, 2**25) // 4, device=setting.device)
    b = torch.empty_like(a)
    best = float("inf")
    for _ in range(10):
        synchronise(setting.device)
        started = time.perf_counter()
        b.copy_(a)
        synchronise(setting.device)
        best = min(best, time.perf_counter() - started)
    bandwidth = 2 * a.numel() * 4 / best
    rows = [
        [f"products of square matrices in {name}", f"{speed / 1e12:.2f} TFLOP/s"] for name, speed in speeds.items()
    ]
    rows.append(["copying within its memory", f"{bandwidth / 1e9:,.0f} GB/s"])
    if not setting.small:
        free, total = torch.cuda.mem_get_info()
        rows.append(["memory", f"{total / 1e9:.1f} GB, {free / 1e9:.1f} GB of it free"])
    data = {"flops_per_second": speeds, "bytes_per_second": bandwidth}
    yield Findings([Table("The device, as measured", ("what", "how much"), rows)], data)


def suites(setting: Setting) -> Iterator[Findings]:
    """The GPU-marked suites except the slow one, which the stage `smoke` replaces."""
    if setting.small:
        yield Findings(skipped="no CUDA device")
        return
    workers = min(8, os.cpu_count() or 1)
    report = setting.folder / "suites.xml"
    options = ["-m", "gpu and not slow", "-n", str(workers), f"--junit-xml={report}", "suites"]
    yield _tested("GPU-marked suites", options, setting)


def check(dtype: str, setting: Setting) -> Iterator[Findings]:
    """`cemverify check` of the reference and of its fast paths in this dtype."""
    names = ("cemverify:reference", "cemverify:fast")
    rows: list[list[Any]] = []
    data: dict[str, Any] = {}
    began = time.monotonic()
    for name in names:
        file = setting.folder / f"check-{dtype}-{name.partition(':')[2]}.json"
        options = ["--device", setting.device, "--dtype", dtype, "--json", str(file), "--seconds", "20"]
        options += ["--examples", setting.scaled("24", "12")]
        if setting.small:
            options += ["--properties", "gradient/attention/plain", "gradient/mlp"]
        else:
            options += ["--workers", str(min(14, os.cpu_count() or 1))]
        started = time.monotonic()
        limit = max(setting.seconds - (started - began) - 5, 5.0) / (len(names) - len(data))
        code, text = _run(["-m", "cemverify", "check", name, *options], limit)
        seconds = time.monotonic() - started
        if not file.exists():
            rows.append([name, dtype, *[""] * 5, f"no verdict: {_why(code, text)}", f"{seconds:.0f}"])
            data[name] = {"exit_code": code, "output": text[-2000:]}
        else:
            content = envelope.read(file)
            counts = content["counts"]
            named = [
                f"{p['id']} ({p['verdict']}{'' if (m := p['margin']) is None else f', margin {m:.2f}'})"
                for p in content["properties"]
                if p["verdict"] in ("violated", "inconclusive", "suite error")
            ]
            keys = ("run", "holds", "violated", "inconclusive", "not_offered")
            rows.append([name, dtype, *(counts[key] for key in keys), "; ".join(named), f"{seconds:.0f}"])
            data[name] = {"exit_code": code, "counts": counts, "named": named}
        counted = ("asked", "hold", "violated", "inconclusive", "not offered")
        columns = ("implementation", "dtype", *counted, "which", "seconds")
        yield Findings([Table(f"cemverify check on {setting.device} in {dtype}", columns, rows)], data)


def attend(setting: Setting) -> Iterator[Findings]:
    """Attention forward and backward against torch's fused attention, at growing lengths."""
    lengths = setting.scaled((1024, 2048, 4096, 8192, 16384), (256, 512))
    rows: list[attention.Row] = []
    started = time.monotonic()
    for i, J in enumerate(lengths):
        left = setting.seconds - (time.monotonic() - started)
        shape = setting.scaled(attention.Shape(max(1, 16384 // J), J, 768, 12), attention.Shape(1, J, 64, 2))
        chosen = attention.kinds(setting.scaled((1, 2, 8), (1, 2)))
        # the formula too, if its weights fit the memory
        paths = traffic.WAYS if J <= 4096 else traffic.WAYS[:2]
        rows += attention.measure(
            shape,
            chosen,
            device=setting.device,
            dtype=setting.scaled(torch.bfloat16, torch.float32),
            paths=paths,
            rounds=setting.scaled(8, 2),
            seconds=left / (2 * (len(lengths) - i)),
        )
        title = "Attention, forward and backward, against four linear maps and torch's fused attention"
        if not setting.small:
            title += ", bfloat16, 16,384 tokens, D = 768, K = 12"
        table = attention.table(title, rows, None if setting.small else _counted(setting, "attention"))
        yield Findings([table], {"attention": attention.as_json(rows)})


def train(setting: Setting) -> Iterator[Findings]:
    """Steps of training at the paper's sizes: tokens per second, utilisation, memory."""
    speed = peak_flops(setting.device, setting.scaled("bfloat16", "float32"))
    counts = _counted(setting, "training")
    contenders = [
        c for size in setting.scaled(("86M", "162M"), ("86M",)) for c in training.contenders(size, (1, 2, 4, 8))
    ]
    compiling = compiles(setting.device, None)
    contenders = [c for c in contenders if compiling or not c.compiled]
    if setting.small:
        contenders = [replace(c, name=f"small{c.name[3:]}", model=_shrunk(c.model)) for c in contenders]
    # the most wanted measurements first, in case the time runs out
    contenders.sort(key=lambda c: ("full" in c.name, c.path is not None, c.path == "formula"))
    steps: list[training.Step] = []
    started = time.monotonic()
    for c in contenders:
        if time.monotonic() - started > setting.seconds - 5:
            break
        batch, context = setting.scaled((8, CONTEXT), (1, 128))
        steps.append(training.measure(c, batch=batch, context=context, device=setting.device, steps=5, seconds=4.0))
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        order = {c: i for i, c in enumerate(contenders)}
        listed = sorted(steps, key=lambda s: (s.contender.name[:4], order[s.contender]))
        data = {"training": training.as_json(listed), "peak_flops": speed, "asked": len(contenders)}
        precision = setting.scaled("bfloat16", "float32")
        title = f"A step of training, products in {precision}; utilisation is of {speed / 1e12:.3g} TFLOP/s"
        yield Findings([training.table(title, listed, speed, counts)], data)


def decode(setting: Setting) -> Iterator[Findings]:
    """Tokens per second and cache size at growing contexts."""
    models = {"Llama RoPE": presets.llama("86M")}
    for T in (1, 2):
        models[f"CEM T={T}"] = shared_preconditioners(presets.full_cem("86M", T))
        models[f"CEM T={T}, no diagonal"] = training.without_diagonal(models[f"CEM T={T}"])
    if setting.small:
        models = {name: _shrunk(config) for name, config in models.items()}
    rows: list[decoding.Decoded] = []
    for batch in setting.scaled((1, 16), (1,)):
        for context in setting.scaled((1024, 4096, 16384), (128,)):
            rows += decoding.measure(
                models,
                contexts=(context,),
                batch=batch,
                device=setting.device,
                dtype=setting.scaled(torch.bfloat16, torch.float32),
                rounds=30,
                seconds=8.0,
            )
            model = setting.scaled("size 86M", "a small model")
            title = f"Decoding one token at a time, {model}; the cache is bytes per token and sequence"
            yield Findings([decoding.table(title, rows)], {"decoding": list(map(asdict, rows))})


def smoke(setting: Setting) -> Iterator[Findings]:
    """A short run of `language train`: the 86M models on the bytes of Python's standard library."""
    file = setting.folder / "language.json"
    file.unlink(missing_ok=True)  # of an earlier run
    part = setting.scaled(["smoke"], ["tiny", "--steps", "12"])
    where = ["--device", setting.device, "--corpora", str(setting.folder / "corpora"), "--output", str(file)]
    code, text = _run(["-m", "synthetic", "language", "train", "--preset", *part, *where], setting.seconds)
    if not file.exists():
        raise UsageError(_why(code, text))
    content = envelope.read(file)
    reasons = "; ".join(content["verdict"]["reasons"])
    passed = Table("A short training: does it pass?", ("passes", "why not"), [[not reasons, reasons]])
    yield Findings([passed, *envelope.tables_of(content)[:2]], {"exit_code": code, "models": content["models"]})


# By importance: correctness before speed, and what was never measured before what is known from elsewhere.
STAGES: Sequence[Stage] = (
    Stage("rehearsal", rehearse, 90, None, on_cpu=900),
    Stage("counts", count, 200, None, on_cpu=600),
    Stage("device", device, 40, "the speed of a GPU"),
    Stage("suites", suites, 100, "the GPU-marked suites"),
    Stage("check-float32", partial(check, "float32"), 140, "the catalogue on a GPU in float32", on_cpu=150),
    Stage("attention", attend, 220, "attention against flash attention at J = 1,024 to 16,384"),
    Stage("training", train, 270, "utilisation and memory of training at 86M and 162M with T = 1, 2, 4, 8"),
    Stage("decoding", decode, 90, "decoding at 86M from 1,024 to 16,384 tokens of context"),
    Stage("check-bfloat16", partial(check, "bfloat16"), 140, "the catalogue on a GPU in bfloat16", on_cpu=150),
    Stage("check-float64", partial(check, "float64"), 140, "the catalogue on a GPU in float64", on_cpu=150),
    Stage("smoke", smoke, 240, "a training of the 86M models whose loss falls", on_cpu=180),
)


def _shrunk(config: Any) -> Any:
    """The same kind of model, small enough for a CPU."""
    attention_, mlp = config.block.attention, config.block.mlp
    block = replace(config.block, attention=replace(attention_, dim=32, heads=2), mlp=replace(mlp, dim=32, hidden=64))
    return replace(config, vocabulary=256, layers=2, block=block)


def _run(arguments: Sequence[str], seconds: float) -> tuple[int | None, str]:
    """Runs Python; returns the exit code, None if it had to be stopped, and the output."""
    process = subprocess.Popen(  # noqa: S603 -- this Python, on our own modules
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        text, _ = process.communicate(timeout=seconds)
        return process.returncode, text
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        text, _ = process.communicate()
        return None, text


# --- running them -----------------------------------------------------------------------------------


def perform(name: str, device_: str, folder: Path, seconds: float) -> None:
    """Runs one stage in this process, and writes its findings each time they grow."""
    stage = next(stage for stage in STAGES if stage.name == name)
    started = time.monotonic()
    setting = Setting(device_, seconds, folder)
    with torch.random.fork_rng(devices=()):
        torch.set_num_threads(1)
        latest = Findings(skipped="it found nothing")
        for latest in stage.run(setting):
            _write_stage(folder, stage, setting, latest, started, finished=False)
        _write_stage(folder, stage, setting, latest, started, finished=True)


def _write_stage(
    folder: Path, stage: Stage, setting: Setting, findings: Findings, started: float, *, finished: bool
) -> None:
    content = {
        "stage": stage.name,
        "finished": finished,
        "device": provenance.describe_device(setting.device),
        "versions": provenance.versions(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - started, 1),
        "skipped": findings.skipped,
        "tables": [asdict(table) for table in findings.tables],
        "data": findings.data or {},
    }
    envelope.write(_file(folder, stage.name), content)


def _file(folder: Path, name: str) -> Path:
    return folder / f"stage-{name}.json"


def read_stage(folder: Path, name: str) -> Mapping[str, Any] | None:
    """The file that a stage left in the folder; None if none can be read, so that the stage runs again."""
    try:
        content: Mapping[str, Any] = envelope.read_json(_file(folder, name))
    except ResultError:
        return None
    return content if envelope.flaw(content, _stage_schema()) is None and content["stage"] == name else None


def _stage_schema() -> dict[str, Any]:
    """The schema of a stage's file; tables and provenance as in every result."""
    result = envelope.result_schema()["properties"]
    made_by = result["made_by"]["properties"]
    held: dict[str, Any] = {
        "stage": {"type": "string"},
        "finished": {"type": "boolean"},
        "device": made_by["device"],
        "versions": made_by["versions"],
        "created": made_by["created"],
        "seconds": made_by["duration_seconds"],
        "skipped": {"type": ["string", "null"]},
        "tables": result["tables"],
        "data": {"type": "object"},
    }
    return {"type": "object", "required": list(held), "properties": held | {"failed": {"type": "string"}}}


def harvest(names: Sequence[str], device_: str, folder: Path, minutes: float, *, again: bool) -> None:
    """Runs the unfinished stages, each in its own process, until the time is spent."""
    started = time.monotonic()
    for name in names:
        stage = next(stage for stage in STAGES if stage.name == name)
        before = read_stage(folder, name)
        same_device = before is not None and before["device"]["type"] == device_
        if before is not None and before["finished"] and same_device and not again:
            note(f"{name}: finished before, in {before['seconds']:.0f} s; not done again")
            continue
        left = 60 * minutes - (time.monotonic() - started)
        allowed = min(stage.limit(device_), left - _GRACE)
        if allowed < 10:
            note(f"{name}: skipped, since the {minutes:g} minutes are spent")
            continue
        note(f"{name}: at most {allowed:.0f} s")
        began = time.monotonic()
        command = ["-m", "benchmarks", "gpu-stage", name, device_, str(folder), str(allowed)]
        code, text = _run(command, allowed + _GRACE)
        took = time.monotonic() - began
        (folder / f"stage-{name}.log").write_text(text)
        if code is None:
            note(f"{name}: stopped after {took:.0f} s, with what it had found so far")
        elif code:
            last = (text.strip().splitlines() or ["it printed nothing"])[-1]
            note(f"{name}: failed after {took:.0f} s: {last}")
            before = read_stage(folder, name)
            if before is not None and before["tables"]:  # keep what it had found
                envelope.write(_file(folder, name), {**before, "failed": last})
            else:
                setting, why = Setting(device_, 0, folder), Findings(skipped=f"it failed: {last}")
                _write_stage(folder, stage, setting, why, time.monotonic(), finished=False)
        else:
            content = read_stage(folder, name)
            skipped = None if content is None else content["skipped"]
            note(f"{name}: skipped, {skipped}" if skipped else f"{name}: done in {took:.0f} s")


# --- the result -------------------------------------------------------------------------------------


def compose(folder: Path, maker: Maker) -> dict[str, Any]:
    """The result of all stages in the folder."""
    stages = [stage for stage in (read_stage(folder, s.name) for s in STAGES) if stage is not None]
    if not stages:
        raise ResultError(f"no stage has left anything in {folder}; run `python -m benchmarks gpu` first")
    tables = [Table(t["title"], t["columns"], t["rows"]) for stage in stages for t in stage["tables"]]
    by_name = {stage["stage"]: stage for stage in stages}
    rows = [[stage.name, *_standing(by_name.get(stage.name))] for stage in STAGES]
    overview = Table("Stages", ("stage", "state", "device", "seconds", "at"), rows)
    return envelope.result("gpu", maker, [overview, *tables], {"stages": stages, "owed": owed(stages)})


def owed(stages: Sequence[Mapping[str, Any]]) -> list[str]:
    """What no stage has measured on a GPU."""
    answered = {s["stage"] for s in stages if s["device"]["type"].startswith("cuda") and s["tables"]}
    return [stage.owed for stage in STAGES if stage.owed and stage.name not in answered]


def _standing(stage: Mapping[str, Any] | None) -> list[Any]:
    if stage is None:
        return ["not run", "", "", ""]
    state = "done" if stage["finished"] else "stopped at its limit; what it had found is below"
    if stage["skipped"]:
        state = f"skipped: {stage['skipped']}"
    if stage.get("failed"):
        state = f"failed: {stage['failed']}; what it had found is below"
    return [state, stage["device"]["name"], f"{stage['seconds']:.0f}", stage["created"]]


def page(result: Mapping[str, Any], command: str) -> str:
    """The page of a result: what was run where, what is still missing, and every table."""
    stages = result["stages"]
    gpus = sorted({s["device"]["name"] for s in stages if s["device"]["type"].startswith("cuda")})
    dates = sorted({s["created"][:10] for s in stages})
    versions = stages[0]["versions"]
    where = f"on {', '.join(gpus)}" if gpus else "on a CPU: sizes are small, and only show that the stages work"
    parts = [
        "# What a GPU says",
        (
            f"Made by `{command}` {where}, {', '.join(dates)}, with torch {versions['torch']} and Python"
            f" {versions['python']}. Repeat the command to go on where it stopped; `--again` measures again."
        ),
    ]
    if result["owed"]:
        parts.append("Owed, since no GPU was at hand or the time was spent: " + "; ".join(result["owed"]) + ".")
    parts.append(LEGEND)
    parts.append(markdown(envelope.tables_of(result)))
    return "\n\n".join(parts) + "\n"


LEGEND = """\
- **Attention**: one layer, forward and backward to its input and its parameters. *Time / MHA* is the geometric mean
  of ratios taken in turn, with a 95 % interval, against four linear maps and `scaled_dot_product_attention` of the
  same width. *FLOPs / MHA* counts causal attention by half and nothing twice. *Time / FLOPs* is their quotient, 1 if
  CEM makes as good use of the device as MHA. *by size* is the path that a layer takes by itself; *formula* evaluates
  the energy's gradient as it is written, *tiles* a few rows of weights at a time. *Error / budget* is the worst error
  of the path's output and gradients against float64, over twice the formula's own; no time is shown where it exceeds
  1. *GB moved* and *roofline / time* are counted as *predicted* below.
- **Rehearsal**: paths on tensors that claim to be on a GPU and hold no numbers. One fails where a GPU would refuse
  it, where autocast left a product in float32, and where the CPU would wait for the GPU and should not. What a step
  holds is counted and set beside the formula of `--estimate`; each of eight processes has its share, or sends every
  gradient once.
- **Training**: forward, backward and update on random tokens, parameters in float32. *CEM* has a shared diagonal,
  ALiBi, and preconditioners that are diagonal and shared by the heads. *Full CEM* has the paper's low-rank ones per
  head, for which each head reads the states out by itself. *Utilisation* is the model's FLOPs, counted as above, over
  what square products reach on the same device. "Out of memory" is a finding. *GB* is what the step moves, counted as
  below, and *roofline / time* the share of the time that these bytes and the products take at an H100's speeds.
- **Predicted**: kernels and bytes counted on fake tensors, each operation by what it reads and writes; *compiled* is
  what torch's Inductor plans for a CPU. The roofline is that of an H100: copying at 2.96 TB/s, square products at 766
  TFLOP/s, as measured; flash attention at 300 TFLOP/s and 2 microseconds for the shortest kernel, as assumed.
- **Checks**: `cemverify check` with 24 examples for each property; properties that do not hold are named."""
