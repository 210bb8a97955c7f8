//! `cargo xtask parity`: deviation of the program's outputs from the references', for each golden model as it is
//! stored, and for each KV cache type if it has a KV cache; and on CUDA, whose kernels are interpreted. Written to
//! `docs/parity.md`.
//!
//! `cargo xtask parity FOLDER`: the same for models elsewhere; only those that deviate are reported.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use tallow_support::{Golden, json, tensors};

use crate::program::{library, program};

/// KV cache types.
const CACHES: [&str; 5] = ["f32", "f16", "bf16", "int8", "fp8"];

/// A device that a case is computed on: its name, and the folder of a driver for it.
type On<'a> = (&'a str, Option<&'a Path>);

const CPU: On<'static> = ("cpu", None);
/// Largest deviation that is allowed on CUDA, as a multiple of the CPU's: as in the tests of the goldens.
const SLACK: f64 = 4.0;

/// Suffixes of the tensor names that are compared.
const COMPARED: [&str; 7] = [
    "logits",
    "logits_per_image",
    "last_hidden_state",
    "encoder_last_hidden",
    "text_embeds",
    "image_embeds",
    "cls_pooled_l2",
];

/// A model with reference outputs.
#[derive(Clone)]
struct Case {
    /// `llama`, `llama-q8_0.gguf`
    name: String,
    /// Type of most of its weights.
    stored: String,
    model: PathBuf,
    /// The prompts and the reference's outputs.
    golden: PathBuf,
    /// Largest allowed deviation with an `f32` cache.
    tolerance: f64,
    /// KV cache types to test; one for models without a KV cache.
    caches: &'static [&'static str],
}

pub(crate) fn run(root: &Path) -> ExitCode {
    match write(root) {
        Ok(rows) => {
            println!("parity: {rows} models, written to docs/parity.md");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("parity: {why}");
            ExitCode::FAILURE
        }
    }
}

pub(crate) fn run_on(root: &Path, folder: &Path) -> ExitCode {
    match look(root, folder) {
        Ok([near, far, refused]) => {
            println!("parity: {near} models are as they should be, {far} are off, {refused} are refused");
            if far == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(why) => {
            eprintln!("parity: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Numbers of models in a folder that match the reference, deviate, and are refused.
fn look(root: &Path, folder: &Path) -> Result<[usize; 3], String> {
    let program = program(root, None)?;
    let mut counts = [0; 3];
    for case in cases_of(folder, folder)? {
        match dump(&program, CPU, &case, "f32")? {
            Err(why) => {
                println!("refused: {why}");
                counts[2] += 1;
            }
            Ok(found) => match distance(&tensors(&case.golden), &found)? {
                far if f64::from(far) <= case.tolerance => counts[0] += 1,
                far => {
                    println!("{}: off by {far:.1e}, {:.0e} is allowed", case.name, case.tolerance);
                    counts[1] += 1;
                }
            },
        }
    }
    Ok(counts)
}

fn write(root: &Path) -> Result<usize, String> {
    let program = program(root, None)?;
    let driver = driver(root)?;
    let cases = cases(&root.join("tests/goldens"))?;
    let mut table = String::new();
    let mut too_far = Vec::new();
    for case in &cases {
        let wanted = tensors(&case.golden);
        let mut row = format!("| {} | {} | {:.0e} |", case.name, case.stored, case.tolerance);
        for cache in case.caches {
            let far = distance(&wanted, &dump(&program, CPU, case, cache)??)?;
            let _ = write!(row, " {far:.1e} |");
            if *cache == "f32" && f64::from(far) > case.tolerance {
                too_far.push(format!("{}: off by {far:.1e}", case.name));
            }
        }
        row += &" |".repeat(CACHES.len() - case.caches.len());
        let far = distance(&wanted, &dump(&program, ("cuda", Some(&driver)), case, "f32")??)?;
        let _ = write!(row, " {far:.1e} |");
        if f64::from(far) > SLACK * case.tolerance {
            too_far.push(format!("{}: off by {far:.1e} on CUDA", case.name));
        }
        println!("{row}");
        let _ = writeln!(table, "{row}");
    }
    let path = root.join("docs/parity.md");
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let (before, rest) = text.split_once(BEGIN).ok_or("docs/parity.md has no place for the table")?;
    let (_, after) = rest.split_once(END).ok_or("docs/parity.md has no end of the table")?;
    std::fs::remove_dir_all(&driver).map_err(|e| format!("{}: {e}", driver.display()))?;
    let head = "| model | stored as | allowed | f32 | f16 | bf16 | int8 | fp8 | f32, CUDA |\n|---|---|---|---|---|---|---|---|---|\n";
    let text = format!("{before}{BEGIN}\n{head}{table}{END}{after}");
    std::fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))?;
    match too_far.is_empty() {
        true => Ok(cases.len()),
        false => Err(too_far.join("; ")),
    }
}

const BEGIN: &str = "<!-- parity -->";
const END: &str = "<!-- /parity -->";

/// A folder with the driver that interprets kernels, under the name that the program looks for.
fn driver(root: &Path) -> Result<PathBuf, String> {
    let folder = std::env::temp_dir().join(format!("tallow-parity-driver-{}", std::process::id()));
    let wrong = |e: std::io::Error| format!("{}: {e}", folder.display());
    std::fs::create_dir_all(&folder).map_err(wrong)?;
    std::fs::copy(library(root)?, folder.join("libcuda.so.1")).map_err(wrong)?;
    Ok(folder)
}

/// All golden models: folders, and GGUF files that are twins of one.
fn cases(goldens: &Path) -> Result<Vec<Case>, String> {
    let mut cases = Vec::new();
    for group in ["", "quant", "more", "encoders", "seq2seq"] {
        for case in cases_of(goldens, &goldens.join(group))? {
            let bare = case.name.rsplit('/').next().unwrap_or_default();
            for path in entries(&goldens.join("gguf-models"))? {
                let file = name(Path::new(path.file_name().unwrap_or_default()));
                let rest = file.strip_prefix(&format!("{bare}-")).and_then(|rest| rest.strip_suffix(".gguf"));
                if let Some(dtype) = rest.filter(|rest| ["bf16", "f16", "f32"].contains(rest)) {
                    let stored = format!("{} GGUF", dtype.to_uppercase());
                    cases.push(Case { stored, model: path, ..case.clone() });
                }
            }
            cases.push(case);
        }
    }
    cases.sort_by(|a, b| (&a.name, &a.stored).cmp(&(&b.name, &b.stored)));
    Ok(cases)
}

/// The models in a folder below `root`.
fn cases_of(root: &Path, folder: &Path) -> Result<Vec<Case>, String> {
    let mut cases = Vec::new();
    for model in entries(folder)? {
        let golden = model.join("golden.safetensors");
        let is_there = model.join("config.json").exists() && golden.exists();
        if is_there && is_for_the_program(&model, &golden) {
            let name = name(model.strip_prefix(root).unwrap_or(&model));
            let tolerance = tolerance(&model.join("golden.json"))?;
            let (stored, caches) = (stored(&model), caches(&model));
            cases.push(Case { name, stored, model, golden, tolerance, caches });
        }
    }
    Ok(cases)
}

fn name(path: &Path) -> String {
    path.to_string_lossy().replace('\\', "/")
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let wrong = |e: std::io::Error| format!("{}: {e}", folder.display());
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(folder).map_err(wrong)?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    entries.sort();
    Ok(entries)
}

/// True if no prompt exceeds the program's context. Some cases go past it on purpose, to test RoPE there.
fn is_for_the_program(folder: &Path, golden: &Path) -> bool {
    let context = json(&folder.join("config.json"))["max_position_embeddings"].as_u64();
    let is_short =
        |golden: &Golden| context.is_none_or(|most| golden.shape.last().is_none_or(|n| *n as u64 <= most));
    let fits = |(name, ids): (&String, &Golden)| !name.ends_with("input_ids") || is_short(ids);
    tensors(golden).iter().all(fits)
}

/// KV cache types of a model: only generative models have a KV cache.
fn caches(folder: &Path) -> &'static [&'static str] {
    let config = json(&folder.join("config.json"));
    let arch = config["architectures"][0].as_str().unwrap_or_default();
    let writes =
        ["ForCausalLM", "LMHeadModel", "ForConditionalGeneration"].iter().any(|end| arch.ends_with(end));
    if writes { &CACHES } else { &CACHES[..1] }
}

fn tolerance(facts: &Path) -> Result<f64, String> {
    let tolerance = json(facts)["suggested_abs_tolerance_f32"].as_f64();
    tolerance.ok_or_else(|| format!("{} does not say what is allowed", facts.display()))
}

/// Type of most of a folder's weights, or its quantization method.
fn stored(folder: &Path) -> String {
    let config = json(&folder.join("config.json"));
    if let Some(method) = config["quantization_config"]["quant_method"].as_str() {
        return method.to_owned();
    }
    let dtype = ["dtype", "torch_dtype"].iter().find_map(|key| config[key].as_str());
    match dtype {
        Some("bfloat16") => "BF16".into(),
        Some("float16") => "F16".into(),
        _ => "F32".into(),
    }
}

/// The program's outputs for a case, or the reason for its refusal. A crash must not pass as a refusal.
fn dump(
    program: &Path,
    (device, driver): On<'_>,
    case: &Case,
    cache: &str,
) -> Result<Result<BTreeMap<String, Golden>, String>, String> {
    let output = std::env::temp_dir().join(format!("tallow-parity-{}.safetensors", std::process::id()));
    let mut command = Command::new(program);
    if let Some(driver) = driver {
        command.env("LD_LIBRARY_PATH", driver);
    }
    let run = command
        .args(["dump", "--device", device, "--precision", cache])
        .arg(&case.model)
        .arg("--in")
        .arg(&case.golden)
        .arg("--out")
        .arg(&output)
        .output()
        .map_err(|e| e.to_string())?;
    let said = || format!("{}: {}", case.name, String::from_utf8_lossy(&run.stderr).trim());
    match run.status.code() {
        Some(0) => {}
        Some(1) => return Ok(Err(said())),
        _ => return Err(format!("{}, {}", said(), run.status)),
    }
    let found = tensors(&output);
    std::fs::remove_file(&output).map_err(|e| e.to_string())?;
    Ok(Ok(found))
}

/// Largest deviation from the reference over all tensors that both have.
fn distance(wanted: &BTreeMap<String, Golden>, found: &BTreeMap<String, Golden>) -> Result<f32, String> {
    let (mut most, mut seen) = (0f32, 0);
    for (name, want) in wanted.iter().filter(|(name, _)| COMPARED.iter().any(|end| name.ends_with(end))) {
        let got = found.get(name).ok_or_else(|| format!("{name} was not written"))?;
        if got.shape != want.shape {
            return Err(format!("{name} has shape {:?}, not {:?}", got.shape, want.shape));
        }
        // Rows of padding are not compared.
        let mask = wanted.get("attention_mask").filter(|_| name.contains("hidden")).map(Golden::ids);
        let width = want.shape.last().copied().unwrap_or(1);
        let far = |(a, b): (&f32, &f32)| if (a - b).is_nan() { f32::INFINITY } else { (a - b).abs() };
        let (got, want) = (got.f32(), want.f32());
        for (i, (got, want)) in got.chunks(width).zip(want.chunks(width)).enumerate() {
            if mask.as_ref().is_none_or(|mask| mask.get(i) == Some(&1)) {
                most = got.iter().zip(want).map(far).fold(most, f32::max);
            }
        }
        seen += 1;
    }
    if seen == 0 { Err("nothing was compared".into()) } else { Ok(most) }
}
