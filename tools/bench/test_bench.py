"""Tests of what needs no peer and no model: python3 -m unittest discover tools/bench"""
from __future__ import annotations

import contextlib
import http.server
import io
import json
import pathlib
import tempfile
import threading
import unittest
import xml.etree.ElementTree

import bench_peers
import edit_model
import processes
import speculative
import turns
from bench_peers import CLAIMS, GROUPS, ROOT, Failed, Job, Measured, Program, jobs
from processes import Load
from report import (NEW, OLD, OTHERS, OURS, Claim, Limits, Results, Row, Run, between_markers, chart, comparison, line, section,
                    sentence, spread, verdicts, write_pages)

LLAMA, IK = "llama.cpp", "ik_llama.cpp"


def sample(test: str, tallow: list[float], **peers: dict[str, list[float]]) -> Row:
    """A made-up row on a machine whose bound is 100 tokens per second."""
    runs = {OURS: {"": tallow}, **{{"llama": LLAMA, "ik": IK}.get(name, name): settings for name, settings in peers.items()}}
    return Row("decode", test, "m-Q4_0", 2, "tokens/s", "abc", "2026-01-31", [Limits(100.0, 1000.0, 100.0) for _ in tallow],
               {name: {setting: [Run(value, 0.01) for value in values] for setting, values in settings.items()}
                for name, settings in runs.items()})


def results(*rows: Row) -> Results:
    machine = {"cpu": "Xeon", "isa": "amx", "cores": 2, "memory": 24, "system": "linux x86_64", "rustc": "rustc 1.95.0"}
    return Results(machine, {LLAMA: "0c1e57098, built with Clang 19.1.7"}, list(rows))


class Rows(unittest.TestCase):
    def test_the_best_setting_of_a_peer_counts(self):
        row = sample("pp512", [50.0, 60.0, 55.0], llama={"": [100.0, 100.0, 100.0], "no fa": [110.0, 120.0, 110.0]})
        self.assertEqual(row.best(LLAMA)[0], "no fa")
        self.assertEqual(row.ratios(LLAMA), [50 / 110, 0.5, 0.5])
        row.unit = "ms"
        self.assertEqual(row.best(LLAMA)[0], "")
        self.assertEqual(row.ratios(LLAMA), [2.0, 100 / 60, 100 / 55])
        self.assertEqual(row.ratios(IK), [])

    def test_the_fastest_peer_is_the_rival(self):
        row = sample("tg1", [50.0], llama={"": [40.0]}, ik={"": [45.0]})
        self.assertEqual(row.fastest([LLAMA, IK]), IK)
        row.unit = "ms"
        self.assertEqual(row.fastest([LLAMA, IK]), LLAMA)
        self.assertIsNone(row.fastest([]))

    def test_each_round_is_compared_with_its_own_bound(self):
        row = sample("tg1", [25.0, 100.0, 30.0])
        row.limits[1].bound = 200.0
        self.assertEqual(row.fraction(OURS), 0.3)
        row.limits = [Limits(100.0, 1000.0)] * 3
        self.assertIsNone(row.fraction(OURS))

    def test_results_are_kept_and_replaced_in_order(self):
        kept = results()
        order = [sample(test, []).key() for test in "abc"]
        for test, value in [("c", 1.0), ("a", 2.0), ("b", 3.0), ("a", 4.0)]:
            kept.take(sample(test, [value], llama={"no fa": [value]}), order)
        self.assertEqual([row.best(OURS)[1] for row in kept.rows], [[4.0], [3.0], [1.0]])
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "new" / "results.json"
            kept.save(path)
            self.assertEqual(Results.load(path), kept)
            path.write_text('{"machine": {}}')
            self.assertRaisesRegex(ValueError, "no file that --save wrote", Results.load, path)


class Pages(unittest.TestCase):
    def test_a_row_says_it_all(self):
        row = sample("pp512", [50.0, 52.0, 51.0], llama={"": [90.0] * 3, "no fa": [100.0, 101.0, 102.0]})
        row.runs[LLAMA]["no fa"][2].others = 0.08
        row.threads = 1
        text = section(results(row), [])
        self.assertIn("| pp512, m-Q4_0, 1 thread | 101 (100–102), no fa | 51.0 (50.0–52.0) | 0.50 (0.50–0.51) | 101 %, 51 % | 100.0 "
                      "| 1000 int8 | 8 % ! |\n", text)
        self.assertIn("\n| row | llama.cpp | Tallow | ratio | of the limit: llama.cpp, Tallow | raw read GB/s |", text)
        self.assertTrue(text.startswith("Xeon (amx), 2 cores, 24 GiB, linux x86_64. Tallow abc of 2026-01-31, built with rustc 1.95.0; "
                                        "llama.cpp 0c1e57098, built with Clang 19.1.7.\n"), text)

    def test_rows_without_a_bound_or_a_peer_are_shown_without(self):
        row = sample("serve", [30.0])
        row.unit, row.limits, row.runs[OURS][""][0].others = "ms", [Limits(20.0, 1000.0)], None
        self.assertEqual(line(row, results())[1:], ["–", "30.0 ms (30.0–30.0)", "–", "–, –", "20.0", "1000 int8", "?"])

    def test_spreads(self):
        self.assertEqual(spread([]), "–")
        self.assertEqual(spread([1.0, 4.0, 2.0, 3.0]), "2.5 (1.0–4.0)")
        self.assertEqual(spread([120.4, 99.0, 130.6], unit=" ms"), "120 ms (99–131)")

    def test_wins_and_losses_are_counted(self):
        speeds = [("a", 120.0), ("b", 105.0), ("c", 92.0), ("d", 60.0), ("e", 89.0)]
        rows = [sample(test, [ours], llama={"": [100.0]}) for test, ours in speeds]
        text = sentence(results(*rows, sample("f", [1.0])))
        self.assertIn("in 5 measurements against llama.cpp 0c1e57098, Tallow is faster in 1, level (within 10 %) in 2 and slower in 2", text)
        self.assertIn("from 0.60 times as fast (d, m-Q4_0) to 1.20 times (a, m-Q4_0)", text)
        self.assertEqual(sentence(results()), "Nothing has been measured beside a peer.")

    def test_bars_are_as_long_as_the_fractions_say(self):
        row, without = sample("tg<1>", [50.0], llama={"": [75.0]}), sample("serve", [5.0], llama={"": [9.0]})
        without.limits = [Limits(20.0, 1000.0)]
        svg = chart(results(row, without))
        self.assertEqual(svg.count('class="ours"'), 2)
        self.assertIn('class="ours" x="270" y="78" width="200.0"', svg)
        self.assertIn('class="peer0" x="270" y="90" width="300.0"', svg)
        self.assertIn("tg&lt;1&gt;, m-Q4_0", svg)
        xml.etree.ElementTree.fromstring(svg)
        # More than the bound still fits.
        svg = chart(results(sample("tg", [160.0], llama={"": [40.0]})))
        self.assertIn('y="78" width="400.0"', svg)
        self.assertIn('y="90" width="100.0"', svg)

    def test_what_is_between_markers_is_replaced(self):
        other = "<!-- bench-peers avx2 -->\nother\n<!-- /bench-peers avx2 -->\n"
        text = "a\n<!-- bench-peers amx -->\nold\n<!-- /bench-peers amx -->\n" + other
        once = between_markers(text, "amx", "new\n\n")
        self.assertEqual(once, "a\n<!-- bench-peers amx -->\nnew\n<!-- /bench-peers amx -->\n" + other)
        self.assertEqual(between_markers(once, "amx", "new"), once)
        for unmarked in ("a\n<!-- bench-peers amx -->\n", other):
            with self.assertRaises(ValueError):
                between_markers(unmarked, "amx", "new")

    def test_each_kind_of_cpu_has_its_own_part_of_the_pages(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "docs/img").mkdir(parents=True)
            pages = ("README.md", "docs/benchmarks.md")
            for page in pages:
                (root / page).write_text("".join(f"<!-- bench-peers {isa} -->\n<!-- /bench-peers {isa} -->\n" for isa in ("amx", "avx2")))
            first, second = (results(sample("tg1", [speed], llama={"": [40.0]})) for speed in (50.0, 60.0))
            second.machine["isa"] = "avx2"
            for measured in (first, second):
                write_pages(root, measured, [])
            for page in pages:
                text = (root / page).read_text()
                self.assertIn("1.25 times", text.split("<!-- /bench-peers amx -->")[0])
                self.assertIn("1.50 times", text.split("<!-- /bench-peers amx -->")[1])
            self.assertEqual([path.name for path in sorted((root / "docs/img").iterdir())], ["speed-amx.svg", "speed-avx2.svg"])

    def test_the_pages_have_a_part_for_each_chart(self):
        charts = [path.stem.removeprefix("speed-") for path in (ROOT / "docs/img").glob("speed-*.svg")]
        self.assertIn("amx", charts)
        for isa in charts:
            for page in ("README.md", "docs/benchmarks.md"):
                between_markers((ROOT / page).read_text(encoding="utf-8"), isa, "")


class Claims(unittest.TestCase):
    def test_claims_are_quotations(self):
        for claim in Claim.load(CLAIMS):
            page = " ".join((ROOT / claim.page).read_text(encoding="utf-8").split())
            self.assertIn(claim.claim, page, "mend claims.json as the page was changed")

    def test_rows_refute_claims(self):
        rows = [sample(test, [50.0], llama={"": [theirs]}) for test, theirs in [("tg1", 40.0), ("tg2", 49.0), ("pp1", 60.0)]]
        faster = Claim("README.md", "faster", r"tg\d,", 1.25, LLAMA)
        self.assertEqual(verdicts(results(*rows), [faster]), "Claims refuted: 1 of 1.\n\n"
                         '- README.md, "faster": at least 1.25 times as fast as llama.cpp, but tg2, m-Q4_0: 1.02')
        near = Claim("README.md", "near the limit", "", 0.5)
        self.assertEqual(verdicts(results(*rows), [near]), "Claims refuted: 0 of 1.")
        near.least = 0.51
        self.assertEqual(verdicts(results(*rows), [near]).count("0.50"), 3)
        near.isa = "neon"
        self.assertEqual(verdicts(results(*rows), [near]), "Claims refuted: 0 of 1 (1 not tested by these rows).")


class Commands(unittest.TestCase):
    def words(self, kind: str, job: Job, setting: str = "") -> str:
        program = Program(kind, kind, pathlib.Path("p"))
        return " ".join(program.command(job, pathlib.Path("m.gguf"), 3) + program.settings(job)[setting])

    def test_commands_say_what_is_wanted(self):
        depth = Job("depth", "m", generated=64, depth=4096)
        self.assertEqual(self.words("tallow", depth), "p bench --device cpu --offline -m m.gguf -t 3 -p 0 -n 64 -d 4096 -r 2 -o json")
        self.assertEqual(self.words(LLAMA, depth, "no fa"), "p/llama-bench -m m.gguf -t 3 -p 0 -n 64 -d 4096 -r 2 -o json -fa 0")
        self.assertEqual(self.words(IK, depth, "rtr"), "p/llama-bench -m m.gguf -t 3 -p 0 -n 0 -gp 4096,64 -r 2 -o json -fa 1 -rtr 1")
        batch = Job("batch", "m", generated=8, depth=16, sequences=(2, 4))
        self.assertTrue(self.words("tallow", batch).endswith("-p 0 -n 8 -d 16 --sequences 2,4 -r 1 -o json"))
        self.assertEqual(self.words(LLAMA, batch), "p/llama-batched-bench -m m.gguf -t 3 -c 96 -npp 16 -ntg 8 -npl 2,4 -fa 1")

    def test_rows_are_told_apart(self):
        for quick in (False, True):
            keys = [row.key() for job in jobs(quick) for row in job.rows(1 if job.one_thread else 2)]
            self.assertEqual(len(keys), 27)
            self.assertEqual(len(set(keys)), 27)
        self.assertEqual({job.group for job in jobs(False)}, set(GROUPS))

    def test_results_are_read(self):
        text = '=== repacked 9 tensors\n[\n  {"avg_ts": 337.5, "samples_ts": [ 1 ]},\nnoise\n  {"avg_ts": 2}\n]\nload: done\n'
        self.assertEqual([row["avg_ts"] for row in bench_peers.json_rows(text)], [337.5, 2])
        table = "|  PP | TG | B | S_PP t/s | T_TG s | S_TG t/s |\n|----|--|--|--|--|--|\nnoise\n| 128 | 64 | 2 | 9.5 | 1 | 61.25 |\n"
        self.assertEqual(bench_peers.table_speeds(table), [61.25])
        for wrong in (lambda: bench_peers.json_rows("ggml_init: no\n"), lambda: bench_peers.table_speeds("no\n"),
                      lambda: bench_peers.positive(None), lambda: bench_peers.positive(0)):
            self.assertRaises(Failed, wrong)

    def test_options(self):
        options = bench_peers.arguments("--models m --only depth,serve --threads 7".split())
        self.assertEqual((options.only, options.rounds, options.threads), (["depth", "serve"], 5, 7))
        for wrong in ("--models m --rounds 0", "--models m --only speed", "", "--models m --quick --write", "--from f --against a"):
            with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()):
                bench_peers.arguments(wrong.split())


BENCH = """#!/bin/sh
echo "$0" >> "{log}"
echo '[
  {{"cpu_info": "Xeon", "isa": "avx2", "build_commit": "abc", "avg_ts": {speed}, "roofline": 0.5, "read_gbs": 30, "peak_gflops": 900}}
]'
"""


class Runs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "qwen3-0.6b-Q8_0.gguf").touch()

    def program(self, name: str, speed: float) -> pathlib.Path:
        path = self.folder / name
        path.write_text(BENCH.format(log=self.folder / "log", speed=speed))
        path.chmod(0o755)
        return path

    def main(self, words: str) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = bench_peers.main(words.split())
        return code, out.getvalue(), err.getvalue()

    def test_two_builds_run_in_turn_and_slower_rows_are_told(self):
        again, bench_peers.AGAIN = bench_peers.AGAIN, 0
        self.addCleanup(setattr, bench_peers, "AGAIN", again)
        old, words = self.program("old", 100.0), f"--models {self.folder} --only prefill --rounds 2 --against {self.folder}/old"
        code, out, err = self.main(f"{words} --tallow {self.program('new', 97.0)}")
        self.assertEqual(code, 1, err)
        self.assertIn("| pp512, qwen3-0.6b-Q8_0 | 100 (100–100) | 97.0 (97.0–97.0) | 0.970 (0.970–0.970) | 30.0 |", out)
        self.assertIn("pp512, qwen3-0.6b-Q8_0: 3.0 % slower", out)
        # The first run says which machine this is.
        order = [pathlib.Path(name).name for name in (self.folder / "log").read_text().split()]
        self.assertEqual(order, ["new", *["old", "new"] * 2])
        code, out, _ = self.main(f"{words} --tallow {self.program('new', 98.5)}")
        self.assertEqual((code, out.splitlines()[-1]), (0, "No row is slower by more than 2 %."))
        self.assertTrue(old.exists())

    def test_peers_that_are_not_there_are_left_out(self):
        words = f"--models {self.folder} --only prefill --tallow {self.program('new', 9.0)} --quick --llama {self.folder}"
        code, out, err = self.main(words)
        self.assertEqual(code, 0, err)
        self.assertIn("llama.cpp is left out: ", err)
        self.assertIn("ik_llama.cpp is left out: --ik-llama DIR names the folder of its programs", err)
        self.assertIn("skipped: pp16, qwen3-0.6b-Q4_0", err)
        self.assertIn("| pp16, qwen3-0.6b-Q8_0 | 9.0 (9.0–9.0) | – | 50 % | 30.0 | 900 int8 |", out)

    def test_programs_that_fail_say_why(self):
        self.assertRaisesRegex(Failed, "does not start", processes.output, ["no-such-program"])
        self.assertRaisesRegex(Failed, "ended with 3: last", processes.output, ["sh", "-c", "echo first >&2; echo last >&2; exit 3"])

    def test_disturbed_runs_are_repeated_and_the_quietest_is_kept(self):
        def kept(*shares: float | None) -> list[float]:
            runs = iter([Measured([float(i)], others, []) for i, others in enumerate(shares)])
            return bench_peers.quiet(lambda: next(runs)).values
        self.assertEqual(kept(0.5, 0.2, 0.3), [1.0])
        self.assertEqual(kept(OTHERS), [0.0])
        self.assertEqual(kept(None), [0.0])


def event(**fields: object) -> str:
    return f"data: {json.dumps(fields)}\n\n"


USAGE = event(choices=[], usage={"prompt_tokens": 3, "completion_tokens": 2})
ANSWER = event(choices=[{"text": ""}]) + ": a comment\n\n" + event(choices=[{"text": "a"}], usage=None) + USAGE + "data: [DONE]\n\n"


class Serving(unittest.TestCase):
    def served(self, answer: str, status: int = 200, cut: int = 0) -> int:
        """A server that gives every client the same answer, in chunks that do not end at line ends: its port."""
        bodies = self.bodies = []

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(status)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                pieces = [answer[i:i + 17] for i in range(0, len(answer), 17)]
                text = "".join(f"{len(piece.encode()):X}\r\n{piece}\r\n" for piece in pieces) + "0\r\n\r\n"
                self.wfile.write(text.encode()[:-cut or None])
                self.close_connection = True

            def log_message(self, *_):
                pass
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return server.server_port

    def test_answers_that_stream_are_measured(self):
        load = Load(2, 5, 1, prompt=3, generated=2)
        speed, first, first_95 = processes.drive(self.served(ANSWER), load, 2, 5, 1)
        self.assertGreater(speed, 0)
        self.assertGreaterEqual(first_95, first)
        prompts = {tuple(body["prompt"]) for body in self.bodies}
        self.assertEqual((len(prompts), {len(prompt) for prompt in prompts}), (5, {3}))
        self.assertTrue(all(body["ignore_eos"] for body in self.bodies))

    def test_answers_that_are_not_whole_are_refused(self):
        def refused(why: str, *served: object) -> None:
            self.assertRaisesRegex(Failed, why, processes.ask, self.served(*served), [1, 2, 3], 2)
        refused(r"counted \[3, 1\] tokens of prompt and answer, not \[3, 2\]", ANSWER.replace('_tokens": 2', '_tokens": 1'))
        refused("counted|broke off", ANSWER, 200, 60)
        refused("answered 400: wrong", "wrong", 400)
        refused("answered full", event(error="full"))
        refused("has no text", USAGE)


    def test_turns_count_what_was_seen_before(self):
        usage = {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}
        port = self.served(event(choices=[{"text": "a"}], usage=usage))
        self.assertEqual(turns.ask(f"127.0.0.1:{port}", [1, 2, 3], 4)[1], 2)
        self.assertRaisesRegex(Failed, "counted 3 tokens, not 2", turns.ask, f"127.0.0.1:{port}", [1, 2], 4)
        self.assertEqual([turns.common(*pair) for pair in [([1, 2, 3], [1, 2, 4, 5]), ([1], [1, 2]), ([], [1])]], [2, 1, 0])
        prompts = turns.conversation(10, 3000)
        shared = [turns.common(a, b) / len(a) for a, b in zip(prompts, prompts[1:])]
        self.assertEqual((len(prompts), sum(share < 1 for share in shared)), (12, 2))
        self.assertTrue(2500 < len(prompts[-1]) <= 3000 and min(shared) > 0.9, (len(prompts[-1]), shared))

    def test_requests_with_drafts_are_the_same_each_time(self):
        self.assertEqual(speculative.mixed(5), speculative.mixed(5))
        self.assertEqual(len({json.dumps(speculative.mixed(i)) for i in range(50)}), 50)
        driven = speculative.drive(self.served(ANSWER), [speculative.repeats(1), speculative.sampled(2)], 2)
        self.assertEqual((driven.rate > 0, driven.each, driven.answers), (True, 0, ["a", "a"]))

    def test_an_edited_text_is_answered_by_the_text(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            edit_model.write_model(folder, layers=1, dim=16, ffn=16)
            data = (folder / "model.safetensors").read_bytes()
            length = int.from_bytes(data[:8], "little")
            tensors = json.loads(data[8:8 + length])
            self.assertEqual(max(tensor["data_offsets"][1] for tensor in tensors.values()), len(data) - 8 - length)

            def row(name: str, token: int) -> bytes:
                start = 8 + length + tensors[name]["data_offsets"][0] + 32 * token
                return data[start:start + 32]

            def follows(token: int) -> list[int]:
                embedded = row("model.embed_tokens.weight", token)
                return [other for other in range(edit_model.VOCAB) if row("lm_head.weight", other) == embedded]

            first = edit_model.token(3, 0)
            self.assertEqual(follows(first), [first + 1])
            self.assertEqual(follows(first + edit_model.TEXT - 1), [first])
        for every, kind in [(24, speculative.edit), (8, speculative.summary)]:
            prompts = [kind(i)["prompt"] for i in range(50)]
            changed = sum(sum(b - a != 1 and a - b != edit_model.TEXT - 1 for a, b in zip(p, p[1:])) / 2 for p in prompts)
            self.assertTrue(0.8 < changed / 50 / (edit_model.TEXT / every) < 1.2, changed)


class Comparisons(unittest.TestCase):
    def test_times_that_grow_are_slower(self):
        row = sample("serve", [])
        row.runs = {OLD: {"": [Run(100.0), Run(100.0)]}, NEW: {"": [Run(103.0), Run(104.0)]}}
        row.unit, row.limits = "ms", [Limits(20.0, 900.0)] * 2
        self.assertEqual(len(comparison(results(row))[1]), 1)
        row.runs[NEW][""] = [Run(101.0), Run(90.0)]
        self.assertEqual(comparison(results(row))[1], [])


if __name__ == "__main__":
    unittest.main()
