//! `cargo xtask quants`: perplexity of two trained models in every weight type, and llama.cpp's with the same files and
//! the same tokens. Written to `docs/parity.md`.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::program::{output, program};

const HELP: &str = "\
usage: cargo xtask quants --python PROGRAM [OPTION…]

Makes files of the demo's and of stories260K's weights in every type that `tallow convert --quant` knows, measures their
perplexity with Tallow and with llama.cpp, and writes the table in docs/parity.md.

  --python PROGRAM  a Python that has numpy, gguf and xllamacpp (pip install numpy gguf xllamacpp)
  --tallow PATH     the program, built from this checkout (without it, it is built now)
  --bytes N         how much of the text is scored (60000)
  --only LIST       some of the types, such as q4_0,q8_0: prints their rows and writes no page";

/// All recipes, by their `--quant` names. `f32` stands for the original weights.
const TYPES: [&str; 31] = [
    "f32", "f16", "bf16", "q8_0", "q6_k", "q5_1", "q5_k_m", "q5_k_s", "q5_0", "q4_1", "q4_k_m", "q4_k_s",
    "q4_0", "iq4_nl", "iq4_xs", "nvfp4", "mxfp4", "q3_k_m", "q3_k_s", "iq3_s", "iq3_xxs", "q2_k", "iq2_s",
    "iq2_xs", "iq2_xxs", "q2_0", "tq2_0", "tq1_0", "iq1_m", "iq1_s", "q1_0",
];
/// For stories260K, whose rows have 64 and 172 weights: the types whose blocks fit.
const SHORT: [&str; 12] =
    ["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl", "nvfp4", "mxfp4", "q2_0"];

/// Tokens per perplexity chunk.
const CONTEXT: &str = "256";
/// Fraction by which a perplexity may be worse than llama.cpp's, or where it is better, differ from exact arithmetic's.
const ALLOWED: f64 = 0.005;

const BEGIN: &str = "<!-- quants -->";
const END: &str = "<!-- /quants -->";

pub(crate) fn run(root: &Path, args: &[&str]) -> ExitCode {
    if args.contains(&"--help") || args.is_empty() {
        // A broken pipe (`| head`) is not an error.
        let _ = writeln!(std::io::stdout(), "{HELP}");
        return ExitCode::SUCCESS;
    }
    match Quants::new(root, args).and_then(|quants| quants.run()) {
        Ok(rows) => {
            println!("quants: {rows} files");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("quants: {why}; --help says more");
            ExitCode::FAILURE
        }
    }
}

/// A run of the measurements.
struct Quants {
    root: PathBuf,
    tallow: PathBuf,
    python: String,
    only: Option<Vec<String>>,
    /// Folder of the models.
    folder: PathBuf,
    /// The text for perplexity, and the text for the imatrix.
    texts: [PathBuf; 2],
}

/// The results for a file.
struct Row {
    kind: String,
    bits: f64,
    exact: f64,
    fast: f64,
    peer: f64,
}

impl Row {
    fn more(&self) -> f64 {
        self.fast / self.peer - 1.0
    }

    /// True if it is as good as llama.cpp's. Where it is better, exact products must agree: then the loss is
    /// llama.cpp's.
    fn is_fine(&self) -> bool {
        let near_exact = (self.fast / self.exact - 1.0).abs() <= ALLOWED;
        self.more() <= ALLOWED && (self.more() >= -ALLOWED || near_exact)
    }
}

impl Quants {
    fn new(root: &Path, args: &[&str]) -> Result<Quants, String> {
        let (mut python, mut tallow, mut only, mut bytes) = (None, None, None, 60_000);
        for pair in args.chunks(2) {
            match pair {
                ["--python", program] => python = Some((*program).to_owned()),
                ["--tallow", path] => tallow = Some(PathBuf::from(path)),
                ["--bytes", n] => bytes = n.parse().map_err(|_| format!("--bytes {n} is no number"))?,
                ["--only", list] => only = Some(list.split(',').map(str::to_owned).collect()),
                [name, ..] => return Err(format!("there is no {name}, or it has no value")),
                [] => {}
            }
        }
        let python = python.ok_or("--python has to be given")?;
        let books = tallow_support::shared("children-books").ok_or("there are no books")?.join("valid.txt");
        let text = std::fs::read_to_string(&books).map_err(|e| format!("{}: {e}", books.display()))?;
        let folder = root.join("target/quants");
        std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let texts = ["scored.txt", "measured.txt"].map(|name| folder.join(name));
        let middle = boundary(&text, text.len() / 2);
        for (path, from) in texts.iter().zip([&text[..middle], &text[middle..]]) {
            let part = &from[..boundary(from, bytes)];
            std::fs::write(path, part).map_err(|e| format!("{}: {e}", path.display()))?;
        }
        let tallow = program(root, tallow.as_deref())?;
        Ok(Quants { root: root.to_owned(), tallow, python, only, folder, texts })
    }

    fn run(&self) -> Result<usize, String> {
        let stories = tallow_support::shared("stories260K-hf").ok_or("there is no stories260K-hf")?;
        let demo = self.folder.join("demo-f32.gguf");
        let small = self.folder.join("stories260K-f32.gguf");
        output(self.peer().arg("floats").arg(self.root.join("assets/demo.gguf")).arg(&demo))?;
        output(Command::new(&self.tallow).arg("convert").arg(stories).arg(&small).arg("--force"))?;
        let (mut table, mut count, mut wrong) = (String::from(HEAD), 0, Vec::new());
        for (name, plain, types) in [("demo", demo, &TYPES[..]), ("stories260K", small, &SHORT)] {
            let rows = self.model(name, &plain, types)?;
            let whole = rows.iter().find(|row| row.kind == "f32").map(|row| [row.exact, row.peer]);
            for row in &rows {
                let line = line(name, row, whole);
                print!("{line}");
                table += &line;
                if !row.is_fine() {
                    wrong.push(format!("{name} {}: {:+.2} %", row.kind, 100.0 * row.more()));
                }
            }
            count += rows.len();
        }
        if self.only.is_none() {
            self.write(&table)?;
        }
        match wrong.is_empty() {
            true => Ok(count),
            false => Err(format!("too far from llama.cpp: {}", wrong.join(", "))),
        }
    }

    /// A model in each of the types, from most bits to fewest.
    fn model(&self, name: &str, plain: &Path, types: &[&str]) -> Result<Vec<Row>, String> {
        let importance = self.folder.join(format!("{name}-imatrix.gguf"));
        let mut measure = Command::new(&self.tallow);
        measure.arg("imatrix").arg(plain).arg(&self.texts[1]).args(["-c", CONTEXT, "--force", "-o"]);
        output(measure.arg(&importance))?;
        let (mut files, mut rows) = (Vec::new(), Vec::new());
        for kind in types {
            if self.only.as_ref().is_some_and(|only| !only.iter().any(|o| o == kind) && *kind != "f32") {
                continue;
            }
            let file = self.folder.join(format!("{name}-{kind}.gguf"));
            let mut convert = Command::new(&self.tallow);
            convert.arg("convert").arg(plain).arg(&file).arg("--force");
            let bits = match *kind {
                "f32" => 32.0,
                _ => {
                    let said = output(convert.args(["--quant", kind, "--imatrix"]).arg(&importance))?;
                    bits_of(&said).ok_or_else(|| format!("convert says {said:?}"))?
                }
            };
            let (exact, tokens) = self.perplexity(&file, "exact")?;
            let (fast, _) = self.perplexity(&file, "fast")?;
            eprintln!("{name} {kind}: {bits:.2} bits, {exact:.4} {fast:.4}");
            rows.push((Row { kind: (*kind).into(), bits, exact, fast, peer: 0.0 }, tokens));
            files.push(file);
        }
        let mut peer = self.peer();
        let said = output(peer.arg("score").arg(&self.texts[0]).arg(CONTEXT).args(&files))?;
        let found = said.lines().map(serde_json::from_str::<serde_json::Value>);
        let found: Vec<_> =
            found.collect::<Result<_, _>>().map_err(|e| format!("llama.cpp's script: {e}"))?;
        for ((row, tokens), found) in rows.iter_mut().zip(&found) {
            row.peer = found["perplexity"].as_f64().ok_or("llama.cpp's script gives no perplexity")?;
            if found["tokens"].as_u64() != Some(*tokens) {
                return Err(format!(
                    "{name} {}: llama.cpp scored {} tokens, not {tokens}",
                    row.kind, found["tokens"]
                ));
            }
        }
        let mut rows: Vec<Row> = rows.into_iter().map(|(row, _)| row).collect();
        rows.sort_by(|a, b| b.bits.total_cmp(&a.bits));
        Ok(rows)
    }

    fn perplexity(&self, file: &Path, arithmetic: &str) -> Result<(f64, u64), String> {
        let mut score = Command::new(&self.tallow);
        score
            .arg("perplexity")
            .arg(file)
            .arg(&self.texts[0])
            .args(["--json", "-c", CONTEXT, "--device", "cpu"]);
        let said = output(score.args(["--arithmetic", arithmetic]))?;
        let said: serde_json::Value = serde_json::from_str(&said).map_err(|e| e.to_string())?;
        let found = said["perplexity"].as_f64().zip(said["tokens"].as_u64());
        found.ok_or_else(|| format!("{}: {said}", file.display()))
    }

    fn peer(&self) -> Command {
        let mut command = Command::new(&self.python);
        command.arg(self.root.join("tools/xtask/llama_perplexity.py"));
        command
    }

    fn write(&self, table: &str) -> Result<(), String> {
        let path = self.root.join("docs/parity.md");
        let wrong = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
        let text = std::fs::read_to_string(&path).map_err(|e| wrong(&e))?;
        let (before, rest) = text.split_once(BEGIN).ok_or_else(|| wrong(&"has no place for the table"))?;
        let (_, after) = rest.split_once(END).ok_or_else(|| wrong(&"has no end of the table"))?;
        std::fs::write(&path, format!("{before}{BEGIN}\n{table}{END}{after}")).map_err(|e| wrong(&e))
    }
}

const HEAD: &str = "| model | type | bits a weight | exact | default | llama.cpp | to llama.cpp | loss, exact | default | llama.cpp |\n\
                    |---|---|---|---|---|---|---|---|---|---|\n";

/// `whole`: perplexities of the original weights, ours and llama.cpp's.
fn line(name: &str, row: &Row, whole: Option<[f64; 2]>) -> String {
    let Row { kind, bits, exact, fast, peer } = row;
    let mut line = format!(
        "| {name} | {kind} | {bits:.2} | {exact:.4} | {fast:.4} | {peer:.4} | {:+.2} % |",
        100.0 * row.more()
    );
    for (got, of) in [(exact, 0), (fast, 0), (peer, 1)] {
        let loss = whole.map_or(f64::NAN, |whole| 100.0 * (got / whole[of] - 1.0));
        let _ = write!(line, " {loss:.2} % |");
    }
    line + "\n"
}

/// `FILE: 3.2 MiB, 4.52 bits a weight`
fn bits_of(said: &str) -> Option<f64> {
    said.trim().strip_suffix(" bits a weight")?.rsplit(' ').next()?.parse().ok()
}

/// The last character boundary within `most` bytes.
fn boundary(text: &str, most: usize) -> usize {
    (0..=most.min(text.len())).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_fine_where_the_loss_is_not_ours() {
        let row = |exact, fast, peer| Row { kind: "q4_0".into(), bits: 4.5, exact, fast, peer };
        assert!(row(100.0, 100.4, 100.0).is_fine() && row(100.0, 100.4, 110.0).is_fine());
        assert!(!row(100.0, 100.6, 100.0).is_fine() && !row(110.0, 100.0, 110.0).is_fine());
        let line = line("demo", &row(101.0, 102.0, 102.0), Some([100.0, 102.0]));
        assert_eq!(
            line,
            "| demo | q4_0 | 4.50 | 101.0000 | 102.0000 | 102.0000 | +0.00 % | 1.00 % | 2.00 % | 0.00 % |\n"
        );
        assert_eq!(bits_of("a b.gguf: 3.2 MiB, 4.52 bits a weight\n"), Some(4.52));
    }
}
