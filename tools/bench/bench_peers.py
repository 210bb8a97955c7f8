#!/usr/bin/env python3
"""Measures Tallow against llama.cpp and ik_llama.cpp, in turn on the same machine, and what the machine allows.

    python3 tools/bench/bench_peers.py --llama DIR --models DIR            # prints the table, keeps the results
    python3 tools/bench/bench_peers.py --from FILE --write                 # writes results that were kept into the docs
    python3 tools/bench/bench_peers.py --against OTHER_TALLOW --models DIR # two builds: rows slower by more than 2 %

It needs Python 3.9 and nothing else. Let nothing else run meanwhile.

A row is one test of one model: pp512 computes a prompt of 512 tokens, tg128 generates 128 tokens, d4096 has 4096 in the
KV cache before, x 4 generates for four sequences side by side, serve asks the program's HTTP server. Each round runs
each program once, as a process of its own that warms itself up. `tallow bench` measures the machine beside each run (raw
memory read, peak arithmetic) and counts what a token takes at least; its bound holds for all programs alike. A run in which
other processes took more than 3 % of the machine is repeated up to two times, and the quietest counts. A row shows the
median of the rounds with the least and the most.

Models are GGUF files of the shapes of Qwen3-0.6B, Llama-3.2-1B and a mixture of experts, with trained or random weights:
speeds are the same. Make the quantized ones from the bf16 one, by llama-quantize or `tallow convert --quant`. A folder
of models has MODEL.gguf for each MODEL below; rows of a file that is not there are left out.

tools/bench/build_peers.sh DIR builds both peers for this very machine, llama.cpp from the source package of llama-cpp-python on
PyPI and ik_llama.cpp from GitHub, and prints the command line that measures Tallow against them.
"""
from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import pathlib
import platform
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import Callable

from processes import Failed, Load, output, serve
from report import NEW, OLD, OTHERS, OURS, Claim, Limits, Results, Row, Run, comparison, section, write_pages

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLAIMS = pathlib.Path(__file__).with_name("claims.json")
GROUPS = ["decode", "prefill", "depth", "batch", "serve"]
TYPES = [f"qwen3-0.6b-{kind}" for kind in ("Q4_0", "Q4_K_M", "Q6_K", "Q8_0", "bf16")]
USUAL, LARGER, EXPERTS = TYPES[1], "llama-3.2-1b-Q8_0", "qwen3-moe-Q8_0"
PEER_PROGRAMS = ["llama-server", "llama-batched-bench", "llama-bench"]
# How often a run that was disturbed is repeated.
AGAIN = 2
# Tokens of context for each client of a server.
CONTEXT = 512


@dataclass(frozen=True)
class Job:
    """A test of one model that all programs run in turn; it gives one row or several."""
    group: str
    model: str
    prompt: int = 0
    generated: int = 0
    depth: int = 0
    sequences: tuple[int, ...] = ()
    load: Load | None = None  # on a server
    one_thread: bool = False

    def rows(self, threads: int) -> list[Row]:
        """Rows without results."""
        if self.load:
            many, first = f"serve {self.load.clients} clients", "first token"
            tests = [many, f"{many}, {first}, median", f"{many}, {first}, 95th percentile",
                     "serve 1 client", f"serve 1 client, {first}, median"]
            return [Row(self.group, test, self.model, threads, "ms" if first in test else "tokens/s") for test in tests]
        tests = {
            "decode": [f"tg{self.generated}"],
            "prefill": [f"pp{self.prompt}"],
            "depth": [f"tg{self.generated} @ d{self.depth}"],
            "batch": [f"tg{self.generated} x {n}" for n in self.sequences],
        }
        return [Row(self.group, test, self.model, threads, "tokens/s") for test in tests[self.group]]


@dataclass(frozen=True)
class Measured:
    """What a process gave: a value for each row of its job, and the share of the machine that others used meanwhile."""
    values: list[float]
    others: float | None
    limits: list[Limits]  # for each row; only Tallow gives them


def jobs(quick: bool) -> list[Job]:
    """All jobs, in the order of the table. `quick` makes them small."""
    def n(full: int) -> int:
        return max(8, math.ceil(full / 32)) if quick else full
    few = 1 if quick else 3
    return [
        *(Job("decode", model, generated=n(128)) for model in TYPES),
        *(Job("decode", model, generated=n(64)) for model in (LARGER, EXPERTS)),
        *(Job("decode", model, generated=n(64), one_thread=True) for model in (TYPES[3], TYPES[0], USUAL)),
        *(Job("prefill", model, prompt=n(512)) for model in TYPES),
        Job("prefill", USUAL, prompt=n(2048)),
        *(Job("prefill", model, prompt=n(512)) for model in (LARGER, EXPERTS)),
        Job("depth", USUAL, generated=n(64), depth=n(4096)),
        Job("batch", USUAL, generated=n(64), depth=n(128), sequences=(2, 4, 8)),
        Job("serve", USUAL, load=Load(8, 8 * few, few, n(128), n(128))),
    ]


@dataclass(frozen=True)
class Program:
    """Tallow, a build of it, or a peer."""
    name: str
    kind: str  # "tallow", "llama.cpp" or "ik_llama.cpp"
    path: pathlib.Path  # the program; of a peer, the folder of its programs

    def settings(self, job: Job) -> dict[str, list[str]]:
        """Options to try, by name: the fastest counts."""
        if self.kind == "tallow":
            return {"": []}
        if self.kind == "ik_llama.cpp":
            # It can repack the weights as it loads them.
            return {"": ["-fa", "1"], "rtr": ["-fa", "1", "-rtr", *(["1"] if job.group in ("decode", "prefill", "depth") else [])]}
        off = {"no fa": ["-fa", "0"]} if job.group in ("prefill", "depth") else {}
        return {"": ["-fa", "1"], **off}

    def command(self, job: Job, model: pathlib.Path, threads: int) -> list[str]:
        """The command line without settings; of a server, without its address."""
        if self.kind == "tallow":
            words = [self.path, "serve" if job.load else "bench", "--device", "cpu", "--offline"]
        else:
            words = [self.path / {"batch": "llama-batched-bench", "serve": "llama-server"}.get(job.group, "llama-bench")]
        words += ["-m", model, "-t", threads]
        twice, sequences = ["-r", 2, "-o", "json"], ",".join(map(str, job.sequences))
        if job.load and self.kind == "tallow":
            words += ["--slots", job.load.clients, "--context", CONTEXT]
        elif job.load:
            words += ["-tb", threads, "-np", job.load.clients, "-c", job.load.clients * CONTEXT, "--cache-ram", 0]
        elif sequences and self.kind == "tallow":
            words += ["-p", 0, "-n", job.generated, "-d", job.depth, "--sequences", sequences, "-r", 1, "-o", "json"]
        elif sequences:
            context = (job.generated + job.depth) * max(job.sequences)
            words += ["-c", context, "-npp", job.depth, "-ntg", job.generated, "-npl", sequences]
        elif job.depth and self.kind == "ik_llama.cpp":
            words += ["-p", 0, "-n", 0, "-gp", f"{job.depth},{job.generated}", *twice]
        else:
            words += ["-p", job.prompt, "-n", job.generated, *(["-d", job.depth] if job.depth else []), *twice]
        return list(map(str, words))

    def run(self, job: Job, command: list[str], threads: int, seed: int) -> Measured:
        """Runs it once."""
        ours, count = self.kind == "tallow", len(job.rows(threads))
        if job.load:
            limits = [limit(probe(self.path, threads), bounded=False)] * count if ours else []
            return Measured(*serve(command, job.load, seed), limits)
        said = output(command)
        if job.group == "batch" and not ours:
            # ik_llama.cpp writes its table to standard error.
            rows, values = [], table_speeds(said.out + said.err)
        else:
            rows = json_rows(said.out)
            values = [positive(row.get("avg_ts")) for row in rows]
        if len(values) != count:
            raise Failed(f"{self.name} gave {len(values)} results, not {count}")
        return Measured(values, said.others, [limit(row) for row in rows] if ours else [])


def probe(tallow: pathlib.Path, threads: int) -> dict:
    """What `tallow bench` says of the machine and of itself, with the smallest model and test."""
    words = [tallow, "bench", "demo", "--device", "cpu", "--offline", "-t", threads, "-p", 1, "-n", 0, "-r", 6, "-o", "json"]
    return json_rows(output(list(map(str, words))).out)[0]


def limit(row: dict, bounded: bool = True) -> Limits:
    """The machine's limits, which `tallow bench` measures between the runs of a test; and its bound for that test."""
    bound = positive(row.get("avg_ts")) / positive(row.get("roofline")) if bounded else None
    return Limits(positive(row.get("read_gbs")), positive(row.get("peak_gflops")), bound)


def json_rows(text: str) -> list[dict]:
    """The list that `bench` writes, among lines of log."""
    try:
        return json.loads("".join(line for line in text.splitlines() if line[:1] in (" ", "[", "]")))
    except ValueError as e:
        raise Failed(f"what it wrote is no list of results: {e}") from e


def table_speeds(text: str) -> list[float]:
    """Tokens per second of all sequences together, from llama-batched-bench's table."""
    table = [[cell.strip() for cell in line.split("|")] for line in text.splitlines() if line.startswith("|")]
    column = next((cells.index("S_TG t/s") for cells in table if "S_TG t/s" in cells), None)
    if column is None:
        raise Failed("what it wrote has no column S_TG t/s")
    return [positive(float(cells[column])) for cells in table if cells[1].isdigit()]


def positive(value: object) -> float:
    if not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise Failed(f"{value} is no speed")
    return float(value)


def quiet(run: Callable[[], Measured]) -> Measured:
    """Runs, and repeats while other processes use too much; the least disturbed run counts."""
    best = run()
    for _ in range(AGAIN):
        if (best.others or 0) <= OTHERS:
            break
        best = min(best, run(), key=lambda measured: measured.others or 0)
    return best


def measure(job: Job, programs: list[Program], models: pathlib.Path, threads: int, rounds: int) -> list[Row]:
    """Measures a job, round by round, each program in turn. A peer that fails is left out of the rows."""
    model = models / f"{job.model}.gguf"
    if not model.exists():
        raise Failed(f"there is no {model}")
    rows, failed = job.rows(threads), set()
    for number in range(rounds):
        said = []
        for program, name, options in ((p, name, options) for p in programs for name, options in p.settings(job).items()):
            if program.name in failed:
                continue
            command = program.command(job, model, threads) + options
            try:
                measured = quiet(lambda: program.run(job, command, threads, number))
            except Failed as e:
                if program.kind == "tallow":
                    raise
                print(f"{rows[0].title()}: {program.name} is left out: {e}", file=sys.stderr)
                failed.add(program.name)
                continue
            said.append(f"{program.name}{name and f' {name}'} {' '.join(f'{value:.1f}' for value in measured.values)}")
            for i, row in enumerate(rows):
                row.runs.setdefault(program.name, {}).setdefault(name, []).append(Run(measured.values[i], measured.others))
                if program.name in (OURS, NEW):
                    row.limits.append(measured.limits[i])
        print(f"{rows[0].title()}, round {number + 1}: {'; '.join(said)}", file=sys.stderr)
    for row in rows:
        row.runs = {program: runs for program, runs in row.runs.items() if program not in failed}
    return rows


def peer(name: str, folder: pathlib.Path | None, option: str) -> tuple[Program, str] | None:
    """A peer and its version, or a line that says why it is left out."""
    why = f"{option} DIR names the folder of its programs (--help says how to build them)"
    for program in PEER_PROGRAMS if folder else []:
        try:
            said = output([str(folder / program), "--version"])
        except Failed as e:
            why = f"{e}; {option} is the folder of its programs"
            continue
        commit = re.search(r"commit (\w+)|version: \d+ \((\w+)\)", said.out + said.err)
        compiler = re.search(r"built with (.+?) for ", said.out + said.err)
        version = (commit[1] or commit[2]) if commit else "of an unknown commit"
        return Program(name, name, folder), f"{version}, built with {compiler[1] if compiler else 'an unknown compiler'}"
    print(f"{name} is left out: {why}", file=sys.stderr)
    return None


def build() -> pathlib.Path:
    subprocess.run(["cargo", "build", "--release", "--quiet", "-p", "tallow"], cwd=ROOT, check=True)
    return ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "release/tallow"


def machine(row: dict) -> dict[str, str | int]:
    """What all rows have in common, from what Tallow says and the system."""
    try:
        rustc = " ".join(output(["rustc", "--version"]).out.split()[:2])
    except Failed:
        rustc = "an unknown rustc"
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return {"cpu": row["cpu_info"], "isa": row["isa"], "cores": os.cpu_count() or 1, "memory": round(memory),
            "system": f"{platform.system().lower()} {platform.machine()}", "rustc": rustc}


def arguments(args: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    path = pathlib.Path

    def groups(text: str) -> list[str]:
        if set(text.split(",")) - set(GROUPS):
            raise argparse.ArgumentTypeError(f"some of {','.join(GROUPS)}")
        return text.split(",")

    def count(text: str) -> int:
        if not text.isdigit() or int(text) == 0:
            raise argparse.ArgumentTypeError(f"{text} is no count")
        return int(text)
    parser.add_argument("--models", type=path, metavar="DIR", help="the folder of models")
    parser.add_argument("--llama", type=path, metavar="DIR", help="the folder of llama.cpp's programs")
    parser.add_argument("--ik-llama", type=path, metavar="DIR", help="the folder of ik_llama.cpp's programs")
    parser.add_argument("--tallow", type=path, metavar="FILE", help="the program (without this, this checkout is built)")
    parser.add_argument("--against", type=path, metavar="FILE", help="another build of Tallow, in place of peers")
    parser.add_argument("--only", type=groups, default=GROUPS, metavar="LIST", help=f"some of {','.join(GROUPS)}")
    parser.add_argument("--rounds", type=count, metavar="N", help="rounds of each row (5)")
    parser.add_argument("--threads", type=count, default=os.cpu_count() or 1, metavar="N", help="threads of all programs (all cores)")
    parser.add_argument("--save", type=path, metavar="FILE", help="where results are kept and found (target/bench-peers.json)")
    parser.add_argument("--from", type=path, metavar="FILE", dest="kept", help="measure nothing: show results that were kept")
    parser.add_argument("--write", action="store_true", help="write the parts of README.md and docs/benchmarks.md, and the chart, of this kind of CPU")
    parser.add_argument("--quick", action="store_true", help="small counts, one round, to try it: the numbers mean nothing")
    options = parser.parse_args(args)
    if not options.kept and not options.models:
        parser.error("--models DIR is missing")
    if options.against and (options.kept or options.write) or options.quick and options.write:
        parser.error("--write and --from are for results beside peers, without --against or --quick")
    options.rounds = options.rounds or (1 if options.quick else 5)
    return options


def measure_all(options: argparse.Namespace) -> Results:
    tallow = options.tallow or build()
    first = probe(tallow, options.threads)
    results = Results(machine(first))
    if options.against:
        programs = [Program(OLD, "tallow", options.against), Program(NEW, "tallow", tallow)]
    else:
        found = [peer("llama.cpp", options.llama, "--llama"), peer("ik_llama.cpp", options.ik_llama, "--ik-llama")]
        results.peers = {program.name: version for program, version in filter(None, found)}
        programs = [Program(OURS, "tallow", tallow), *(program for program, _ in filter(None, found))]
    save = options.save or (None if options.quick or options.against else ROOT / "target/bench-peers.json")
    if save and save.exists():
        earlier = Results.load(save)
        if (earlier.machine, earlier.peers) != (results.machine, results.peers):
            raise Failed(f"{save} is of another machine, compiler or peer: name another file with --save")
        results = earlier
    commit = first["build_commit"]
    sources = ["crates", "Cargo.toml", "Cargo.lock"]
    if not options.tallow and output(["git", "-C", str(ROOT), "status", "--porcelain", "--", *sources]).out:
        commit += " with changes"
    todo, today = jobs(options.quick), datetime.date.today().isoformat()
    threads = {job: 1 if job.one_thread else options.threads for job in todo}
    order = [row.key() for job in todo for row in job.rows(threads[job])]
    for job in todo:
        if job.group not in options.only:
            continue
        try:
            rows = measure(job, programs, options.models, threads[job], options.rounds)
        except Failed as e:
            print(f"skipped: {job.rows(threads[job])[0].title()}: {e}", file=sys.stderr)
            continue
        for row in rows:
            row.commit, row.date = commit, today
            results.take(row, order)
        if save:
            results.save(save)
    return results


def show(options: argparse.Namespace) -> int:
    """Measures, unless there are results, and says what came of it."""
    results = Results.load(options.kept) if options.kept else measure_all(options)
    if options.against:
        table, slower = comparison(results)
        print(table)
        print("\n".join(slower) or "No row is slower by more than 2 %.")
        return 1 if slower else 0
    claims = Claim.load(CLAIMS)
    print(section(results, claims))
    if options.write:
        if not results.peers:
            raise Failed("nothing is written: there are no results of peers")
        write_pages(ROOT, results, claims)
    return 0


def main(args: list[str]) -> int:
    options = arguments(args)
    # As on Ctrl-C: a server that is measured must not outlive this program.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return show(options)
    except (Failed, OSError, ValueError, subprocess.CalledProcessError) as e:
        print(f"bench_peers: {e}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
