"""Results of bench_peers.py, and what is written about them: table, chart, claims, comparison of two builds.

A row is one test of one model (`tg128, qwen3-0.6b-Q4_0`), measured in rounds. In each round every program runs once, in
turn, after the machine's limits were measured. So runs of the same round are compared, and a row shows the median over
the rounds with the least and the most.
"""
from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
from dataclasses import dataclass, field
from html import escape
from statistics import median
from typing import Iterable

OURS = "Tallow"
# Two builds of Tallow, compared.
OLD, NEW = "old", "new"
# Share of the machine's CPU time that other processes may use during a run.
OTHERS = 0.03
# Smaller differences from a peer are ties.
TIE = 0.10
# Between two builds of Tallow a row may be so much slower.
SLOWER = 0.02


def median_of(values: Iterable[float]) -> float | None:
    """The median, if there are any."""
    values = list(values)
    return median(values) if values else None


@dataclass
class Run:
    """A process's result, and the share of the machine that other processes used meanwhile (None: unknown)."""
    value: float
    others: float | None = None


@dataclass
class Limits:
    """The machine in one round: raw memory read, peak arithmetic, and what they allow in tokens per second (roofline)."""
    read_gbs: float
    peak_gops: float
    bound: float | None = None


@dataclass
class Row:
    group: str  # decode, prefill, depth, batch or serve
    test: str
    model: str
    threads: int
    unit: str  # "tokens/s", or "ms" where less is better
    commit: str = ""
    date: str = ""
    limits: list[Limits] = field(default_factory=list)
    # By program, then by setting of it ("" is the usual one): a run for each round.
    runs: dict[str, dict[str, list[Run]]] = field(default_factory=dict)

    def key(self) -> tuple[str, str, int]:
        return self.test, self.model, self.threads

    def title(self, cores: int | None = None) -> str:
        threads = {1: ", 1 thread", cores: ""}.get(self.threads, f", {self.threads} threads")
        return f"{self.test}, {self.model}{threads}"

    def best(self, program: str) -> tuple[str, list[float]]:
        """The program's fastest setting, and its values; none if it did not run."""
        settings = {name: [run.value for run in runs] for name, runs in self.runs.get(program, {}).items() if runs}
        if not settings:
            return "", []
        fastest = min if self.unit == "ms" else max
        return fastest(settings.items(), key=lambda setting: median(setting[1]))

    def fastest(self, programs: Iterable[str]) -> str | None:
        """That one of the programs with the best median."""
        ran = [program for program in programs if self.best(program)[1]]
        fastest = min if self.unit == "ms" else max
        return fastest(ran, key=lambda program: median(self.best(program)[1]), default=None)

    def ratios(self, program: str, ours: str = OURS) -> list[float]:
        """How many times as fast `ours` was as the program, round by round."""
        pairs = zip(self.best(ours)[1], self.best(program)[1])
        return [theirs / mine if self.unit == "ms" else mine / theirs for mine, theirs in pairs]

    def fraction(self, program: str) -> float | None:
        """The median, over the rounds, of the speed over the bound of the same round."""
        pairs = zip(self.best(program)[1], self.limits)
        return median_of(value / limits.bound for value, limits in pairs if limits.bound)

    def others(self) -> str:
        """The most that other processes used during a run, marked where that is too much."""
        runs = [run for settings in self.runs.values() for runs in settings.values() for run in runs]
        most = max((run.others for run in runs if run.others is not None), default=None)
        return "?" if most is None else percent(most) + (" !" if most > OTHERS else "")


@dataclass
class Results:
    machine: dict[str, str | int]  # cpu, isa, cores, memory, system, rustc
    peers: dict[str, str] = field(default_factory=dict)  # each peer's version
    rows: list[Row] = field(default_factory=list)

    def take(self, row: Row, order: list[tuple[str, str, int]]) -> None:
        """Adds a row in place of the earlier one of the same test."""
        self.rows = [earlier for earlier in self.rows if earlier.key() != row.key()] + [row]
        self.rows.sort(key=lambda row: order.index(row.key()) if row.key() in order else len(order))

    def save(self, path: pathlib.Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n", encoding="utf-8")
        os.replace(part, path)

    @staticmethod
    def load(path: pathlib.Path) -> Results:
        def row(read: dict) -> Row:
            runs = {program: {name: [Run(**run) for run in runs] for name, runs in settings.items()}
                    for program, settings in read["runs"].items()}
            return Row(**{**read, "limits": [Limits(**limits) for limits in read["limits"]], "runs": runs})
        try:
            read = json.loads(path.read_text(encoding="utf-8"))
            return Results(read["machine"], read["peers"], list(map(row, read["rows"])))
        except (ValueError, TypeError, KeyError) as e:
            raise ValueError(f"{path}: {e!r}; it is no file that --save wrote") from e


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"


def spread(values: list[float], digits: int | None = None, unit: str = "") -> str:
    """`51.2 (50.1–52.0)`: median, least and most."""
    if not values:
        return "–"
    if digits is None:
        digits = 0 if median(values) >= 100 else 1
    return f"{median(values):.{digits}f}{unit} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def markdown(head: list[str], lines: Iterable[list[str]]) -> str:
    rows = [f"| {' | '.join(cells)} |\n" for cells in [head, *lines]]
    return "".join([rows[0], "|" + "---|" * len(head) + "\n", *rows[1:]])


def line(row: Row, results: Results) -> list[str]:
    """A row's cells in the table."""
    unit = " ms" if row.unit == "ms" else ""

    def cell(program: str) -> str:
        setting, values = row.best(program)
        return spread(values, unit=unit) + (f", {setting}" if setting else "")
    rival = row.fastest(results.peers)
    return [
        row.title(int(results.machine["cores"])),
        *map(cell, results.peers),
        cell(OURS),
        spread(row.ratios(rival), 2) if rival else "–",
        ", ".join(percent(row.fraction(program)) for program in [*results.peers, OURS]),
        f"{median(limits.read_gbs for limits in row.limits):.1f}",
        f"{median(limits.peak_gops for limits in row.limits):.0f} {'f32' if row.model.endswith('bf16') else 'int8'}",
        row.others(),
    ]


def section(results: Results, claims: list[Claim]) -> str:
    """The generated part of docs/benchmarks.md."""
    machine, peers = results.machine, results.peers
    built = "; ".join([f"{OURS} {origins(results.rows)}, built with {machine['rustc']}",
                       *(f"{name} {version}" for name, version in peers.items())])
    head = ["row", *peers, OURS, "ratio", f"of the limit: {', '.join([*peers, OURS])}", "raw read GB/s", "peak Gop/s", "others"]
    return f"""\
{machine['cpu']} ({machine['isa']}), {machine['cores']} cores, {machine['memory']} GiB, {machine['system']}. {built}.

{markdown(head, (line(row, results) for row in results.rows))}
Medians, with least and most, of tokens per second, or of milliseconds (ms) where less is better. The ratio says how many \
times as fast {OURS} is as the fastest peer, from the runs of each round. Peers have flash attention on; where "no fa" or \
another setting stands, it was faster. The limit is the raw read for generating and the peak for prompts, each of the same \
minute. "!": other processes took more than {percent(OTHERS)} of the machine in a run, three times over.

{sentence(results)}

{verdicts(results, claims)}
"""


def origins(rows: list[Row]) -> str:
    """The commits and dates of the rows: `1234abcd of 2026-01-31`."""
    origins = list(dict.fromkeys(f"{row.commit} of {row.date}" for row in rows))
    return "".join(origins) if len(origins) < 2 else f"in several states ({', '.join(origins)})"


def sentence(results: Results) -> str:
    """Wins and losses, counted."""
    cores = int(results.machine["cores"])
    rivals = [(row, row.fastest(results.peers)) for row in results.rows]
    ratios = sorted((median(row.ratios(rival)), row.title(cores)) for row, rival in rivals if rival and row.ratios(rival))
    if not ratios:
        return "Nothing has been measured beside a peer."
    faster = sum(ratio > 1 + TIE for ratio, _ in ratios)
    slower = sum(ratio < 1 / (1 + TIE) for ratio, _ in ratios)
    peers = " and ".join(f"{name} {version.split(',')[0]}" for name, version in results.peers.items())
    (worst, slowest), (best, fastest) = ratios[0], ratios[-1]
    return (f"On {cores} cores ({results.machine['cpu']}, {results.machine['isa']}), in {len(ratios)} measurements against {peers}, {OURS} is faster in {faster}, "
            f"level (within {percent(TIE)}) in {len(ratios) - faster - slower} and slower in {slower}: from {worst:.2f} times "
            f"as fast ({slowest}) to {best:.2f} times ({fastest}).")


@dataclass
class Claim:
    """Words of a page about speed, and the bound below which a row refutes them."""
    page: str
    claim: str  # a quotation of the page
    rows: str  # which rows it is about: a regular expression that their titles begin with
    least: float
    peer: str | None = None  # `least` is of the ratio to this peer; without one, of the fraction of the limit
    isa: str | None = None  # the only instruction set that it is about

    @staticmethod
    def load(path: pathlib.Path) -> list[Claim]:
        return [Claim(**claim) for claim in json.loads(path.read_text(encoding="utf-8"))]

    def measured(self, results: Results) -> list[tuple[str, float]]:
        """The rows that the claim is about, with the value of each."""
        rows = [(row.title(int(results.machine["cores"])), row) for row in results.rows if self.isa in (None, results.machine["isa"])]
        values = [(title, median_of(row.ratios(self.peer)) if self.peer else row.fraction(OURS))
                  for title, row in rows if re.match(self.rows, title)]
        return [(title, value) for title, value in values if value is not None]


def verdicts(results: Results, claims: list[Claim]) -> str:
    """The claims that these results refute, and how many they say nothing about."""
    refuted, untested = [], 0
    for claim in claims:
        rows = claim.measured(results)
        untested += not rows
        # Both are compared as they are shown: 0.876 is 0.88.
        below = [f"{title}: {value:.2f}" for title, value in rows if round(value, 2) < claim.least]
        if below:
            what = f"times as fast as {claim.peer}" if claim.peer else "of the limit"
            refuted.append(f'- {claim.page}, "{claim.claim}": at least {claim.least:.2f} {what}, but {"; ".join(below)}')
    untested_too = f" ({untested} not tested by these rows)" if untested else ""
    return "\n\n".join([f"Claims refuted: {len(refuted)} of {len(claims)}{untested_too}.", *(["\n".join(refuted)] if refuted else [])])


def comparison(results: Results) -> tuple[str, list[str]]:
    """Two builds of Tallow: a table, and the rows in which the new one is slower by more than `SLOWER`."""
    cores, lines, slower = int(results.machine["cores"]), [], []
    for row in results.rows:
        ratios, unit = row.ratios(OLD, NEW), " ms" if row.unit == "ms" else ""
        lines.append([row.title(cores), *(spread(row.best(program)[1], unit=unit) for program in (OLD, NEW)),
                      spread(ratios, 3), f"{median(limits.read_gbs for limits in row.limits):.1f}", row.others()])
        if ratios and median(ratios) < 1 - SLOWER:
            slower.append(f"{row.title(cores)}: {100 * (1 - median(ratios)):.1f} % slower (rounds: {spread(ratios, 3)})")
    return markdown(["row", OLD, NEW, "ratio", "raw read GB/s", "others"], lines), slower


WIDTH, LEFT, WHOLE, TOP, BAR = 760, 270, 400, 78, 11
# Colours for light and dark mode. The background is painted, so that either is readable anywhere.
STYLE = """\
text{font:12px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:#1f2328}
.title{font-size:15px;font-weight:600}.small{font-size:11px;fill:#59636e}.end{text-anchor:end}.mid{text-anchor:middle}
.ground{fill:#ffffff}.grid{stroke:#d1d9e0}.limit{stroke:#59636e}.ours{fill:#0969da}.peer0{fill:#afb8c1}.peer1{fill:#d4a72c}
@media (prefers-color-scheme:dark){text{fill:#f0f6fc}.small{fill:#9198a1}.ground{fill:#0d1117}.grid{stroke:#3d444d}
.limit{stroke:#9198a1}.ours{fill:#4493f8}.peer0{fill:#656c76}.peer1{fill:#9e6a03}}"""


def chart(results: Results) -> str:
    """An SVG of the rows that have a limit: a bar for each program, as long as the fraction that it reaches."""
    programs = {OURS: "ours", **{peer: f"peer{i}" for i, peer in enumerate(results.peers)}}
    rows = [(row.title(int(results.machine["cores"])), {name: row.fraction(name) for name in programs}) for row in results.rows]
    rows = [(title, {name: share for name, share in shares.items() if share is not None}) for title, shares in rows]
    rows = [(title, shares) for title, shares in rows if OURS in shares and (len(shares) > 1 or not results.peers)]
    # Where other processes run too, a result can exceed the raw read of the same minute.
    most = max([1.0, *(share for _, shares in rows for share in shares.values())])
    pitch = (BAR + 1) * len(programs) + 8
    bottom = TOP + pitch * len(rows)
    height, names = bottom + 44, " and ".join(programs)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'role="img" aria-label="Speed of {escape(names)} as fractions of what the machine allows">',
        f'<style>{STYLE}</style>',
        f'<rect class="ground" width="{WIDTH}" height="{height}" rx="6"/>',
        '<text class="title" x="16" y="28">Speed as a fraction of what the machine allows</text>',
    ]
    x = 16
    for name, css in programs.items():
        label = f"{name} {results.peers.get(name, '').split(',')[0]}".strip()
        out.append(f'<rect class="{css}" x="{x}" y="41" width="{BAR}" height="{BAR}"/><text x="{x + 17}" y="51">{escape(label)}</text>')
        x += 30 + 7 * len(label)
    for quarter in range(5):
        x, css = LEFT + WHOLE * quarter / 4 / most, "limit" if quarter == 4 else "grid"
        out.append(f'<path class="{css}" d="M{x:.1f} {TOP - 6}V{bottom}"/>')
        out.append(f'<text class="small mid" x="{x:.1f}" y="{TOP - 10}">{25 * quarter} %</text>')
    for i, (title, shares) in enumerate(rows):
        top = TOP + pitch * i
        out.append(f'<text class="end" x="{LEFT - 10}" y="{top + (pitch - 8) / 2 + 4:g}">{escape(title)}</text>')
        for n, (name, share) in enumerate(shares.items()):
            y, width = top + (BAR + 1) * n, WHOLE * share / most
            out.append(f'<rect class="{programs[name]}" x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR}"/>')
            out.append(f'<text class="small" x="{LEFT + width + 5:.1f}" y="{y + 9.5}">{percent(share)}</text>')
    foot = (f"{results.machine['cpu']} ({results.machine['isa']}), {results.machine['cores']} cores. "
            "tg: generating, against the raw read of memory; pp: prompts, against the peak.")
    out += [f'<text class="small" x="16" y="{bottom + 26}">{escape(foot)}</text>', "</svg>", ""]
    return "\n".join(out)


def between_markers(text: str, isa: str, content: str) -> str:
    """The text with what is between the markers of an instruction set replaced."""
    first, last = f"<!-- bench-peers {isa} -->\n", f"<!-- /bench-peers {isa} -->\n"
    if [text.count(first), text.count(last)] != [1, 1]:
        raise ValueError(f"has not one line {first.strip()} and one {last.strip()}: they say where this kind of CPU stands")
    before, rest = text.split(first)
    return f"{before}{first}{content.rstrip()}\n{last}{rest.split(last)[1]}"


def write_pages(root: pathlib.Path, results: Results, claims: list[Claim]) -> None:
    """Writes the chart, and the parts of README.md and docs/benchmarks.md, for this kind of CPU: there is one for each that was
    measured, named by its instruction set."""
    isa = str(results.machine["isa"])
    image = f"docs/img/speed-{isa}.svg"
    (root / image).write_text(chart(results), encoding="utf-8")
    names = " and ".join([OURS, *results.peers])
    readme = (f"![Speed of {names} as fractions of what a CPU with {isa} allows]({image})\n\n"
              f"{sentence(results)} [All numbers](docs/benchmarks.md#against-llamacpp).")
    for page, content in (("README.md", readme), ("docs/benchmarks.md", section(results, claims))):
        path = root / page
        path.write_text(between_markers(path.read_text(encoding="utf-8"), isa, content), encoding="utf-8")
