//! `cargo xtask kernels`: the CUDA backend's kernels, from their source to the PTX that lies in the repository.
//!
//! One pinned compiler, a wheel of PyPI, makes the PTX; what tests interpret, drivers compile, and releases assemble is that
//! text. Drivers older than the compiler take it too: its version is lowered to the first that has what it uses, and an
//! assembler of that age must accept it.

mod toolchain;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use tallow_ptx::{Kernel, Module};

use toolchain::Toolchain;

/// The version of PTX that drivers from 12.0 on know, in place of the compiler's.
const VERSION: &str = ".version 7.8";
/// Target of the PTX: the oldest GPUs that run it.
const TARGET: &str = "compute_80";
/// Architectures to assemble it for.
const ARCHITECTURES: [&str; 6] = ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"];
/// The first of them, which the older assembler knows.
const OLDER: usize = 4;
/// Registers of a multiprocessor.
const REGISTERS: usize = 65536;

/// Makes the PTX, or checks that what is there is what would be made.
pub(crate) fn run(root: &Path, args: &[&str]) -> ExitCode {
    let done = match args {
        [] => make(root).and_then(|made| made.write(root)),
        ["--check"] => match make(root) {
            Err(Stopped::NoToolchain(why)) => {
                println!("the kernels are not checked: {why}");
                Ok(())
            }
            made => made.and_then(|made| made.check(root)),
        },
        ["--cubins", folder] => make(root).and_then(|made| made.cubins(Path::new(folder))),
        _ => Err(Stopped::Failed("it takes nothing, --check, or --cubins FOLDER".into())),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Stopped::NoToolchain(why) | Stopped::Failed(why)) => {
            eprintln!("kernels: {why}");
            ExitCode::FAILURE
        }
    }
}

enum Stopped {
    /// There is no compiler, and it cannot be fetched.
    NoToolchain(String),
    Failed(String),
}

impl From<String> for Stopped {
    fn from(why: String) -> Stopped {
        Stopped::Failed(why)
    }
}

/// Everything that is made from the sources.
struct Made {
    toolchain: Toolchain,
    /// The texts, by their paths from the root.
    files: BTreeMap<PathBuf, String>,
}

fn crate_folder() -> PathBuf {
    PathBuf::from("crates/cuda")
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

fn make(root: &Path) -> Result<Made, Stopped> {
    let work = root.join("target/kernels");
    let toolchain = Toolchain::fetch(&work).map_err(Stopped::NoToolchain)?;
    let sources = sources(&root.join(crate_folder()).join("kernels"))?;
    let compiled = work.join("ptx");
    fs::create_dir_all(&compiled).map_err(|e| format!("{}: {e}", compiled.display()))?;
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let shares: Vec<Vec<&Path>> = (0..cores)
        .map(|core| sources.iter().skip(core).step_by(cores).map(PathBuf::as_path).collect())
        .collect();
    side_by_side(&shares, |share| toolchain.compile(share, &compiled, TARGET))?;
    let modules = side_by_side(&sources, |source| {
        let name = source.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        let text = lowered(&read(&compiled.join(name).with_extension("ptx"))?);
        let module = Module::new(&text).map_err(|e| format!("{name}.ptx: {e}"))?;
        let beside = compiled.join(name).with_extension("lowered.ptx");
        fs::write(&beside, &text).map_err(|e| format!("{}: {e}", beside.display()))?;
        let lines = assembled(&toolchain, name, &module, &beside)?;
        Ok((crate_folder().join("ptx").join(name).with_extension("ptx"), text, lines, entries(name, &module)))
    })?;

    let mut made = Made { toolchain, files: BTreeMap::new() };
    let mut table = format!("{:<34}{:>8}{:>8}", "kernel", "threads", "shared");
    ARCHITECTURES.iter().for_each(|name| _ = write!(table, "{name:>8}"));
    table.push('\n');
    let mut list = String::new();
    for (path, text, lines, entries) in modules {
        table += &lines;
        list += &entries;
        made.files.insert(path, text);
    }
    made.files.insert(crate_folder().join("ptx/registers.txt"), table);
    made.files.insert(crate_folder().join("src/kernels/table.rs"), formatted(root, &rust(&list))?);
    Ok(made)
}

/// The sources, in order.
fn sources(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut sources: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "cu"))
        .collect();
    sources.sort();
    Ok(sources)
}

/// The compiler's PTX as it is shipped: of the version that drivers know, without the compiler's greeting, and without the
/// constants that it leaves behind where nothing reads them.
fn lowered(text: &str) -> String {
    let uses = |name: &str| {
        text.match_indices(name)
            .filter(|(at, _)| {
                let is_part =
                    |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || "_$".contains(c));
                !is_part(text[..*at].chars().next_back()) && !is_part(text[at + name.len()..].chars().next())
            })
            .count()
    };
    let is_left = |line: &str| {
        let name =
            line.strip_prefix(".global ").and_then(|rest| rest.split_once(" = ")?.0.split(' ').next_back());
        name.is_some_and(|name| uses(name) == 1)
    };
    let lines = text.lines().skip_while(|line| !line.starts_with(".version")).filter(|line| !is_left(line));
    let mut out = String::with_capacity(text.len());
    for line in lines {
        // Names of kernels and of variables that moved are comments; the declarations say the same.
        if line.trim_start().starts_with("// .globl") || line.ends_with("has been demoted") {
            continue;
        }
        out += if line.starts_with(".version") { VERSION } else { line.trim_end() };
        out.push('\n');
    }
    while out.contains("\n\n\n") {
        out = out.replace("\n\n\n", "\n\n");
    }
    out.trim_end().to_owned() + "\n"
}

/// Assembles a module for every architecture. Returns a line of the table for each kernel.
fn assembled(toolchain: &Toolchain, name: &str, module: &Module, ptx: &Path) -> Result<String, String> {
    let mut used: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for architecture in ARCHITECTURES {
        let told = toolchain.assemble(ptx, architecture, None)?;
        for (kernel, registers) in told {
            used.entry(kernel).or_default().push(registers);
        }
    }
    for architecture in &ARCHITECTURES[..OLDER] {
        toolchain.assemble_with_older(ptx, architecture)?;
    }
    let mut lines = String::new();
    for kernel in module.kernels() {
        let registers =
            used.get(kernel.name()).ok_or(format!("{name}: {} is not assembled", kernel.name()))?;
        let threads =
            kernel.max_threads().ok_or(format!("{name}: {} has no launch bounds", kernel.name()))?;
        if let Some(most) = registers.iter().max().filter(|most| *most * threads > REGISTERS) {
            return Err(format!("{name}: {} uses {most} registers for {threads} threads", kernel.name()));
        }
        let title = format!("{name}/{}", kernel.name());
        _ = write!(lines, "{title:<34}{threads:>8}{:>8}", kernel.shared());
        registers.iter().for_each(|count| _ = write!(lines, "{count:>8}"));
        lines.push('\n');
    }
    Ok(lines)
}

/// Results of `work` for each item, in their order; on all cores.
fn side_by_side<T: Sync, R: Send>(
    items: &[T],
    work: impl Fn(&T) -> Result<R, String> + Sync,
) -> Result<Vec<R>, String> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let worker = || {
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(i) else { return };
            let result = work(item);
            done.lock().unwrap_or_else(PoisonError::into_inner).push((i, result));
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(worker);
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(i, _)| *i);
    done.into_iter().map(|(_, result)| result).collect()
}

impl Made {
    fn write(&self, root: &Path) -> Result<(), Stopped> {
        for (path, text) in &self.files {
            fs::write(root.join(path), text).map_err(|e| format!("{}: {e}", path.display()))?;
        }
        println!("{} files", self.files.len());
        Ok(())
    }

    fn check(&self, root: &Path) -> Result<(), Stopped> {
        let differs =
            |(path, text): &(&PathBuf, &String)| read(&root.join(path)).ok().as_ref() != Some(*text);
        let mut off: Vec<String> =
            self.files.iter().filter(differs).map(|(path, _)| path.display().to_string()).collect();
        // PTX whose source is gone.
        let there = fs::read_dir(root.join(crate_folder()).join("ptx")).map_err(|e| e.to_string())?;
        for entry in there.flatten() {
            let path = crate_folder().join("ptx").join(entry.file_name());
            if !self.files.contains_key(&path) {
                off.push(format!("{} has no source", path.display()));
            }
        }
        if !off.is_empty() {
            return Err(format!("not what `cargo xtask kernels` makes:\n  {}", off.join("\n  ")).into());
        }
        let all = ARCHITECTURES.join(", ");
        println!("{} files are as made; every module assembles for {all}", self.files.len());
        Ok(())
    }

    /// Writes what releases embed: each module assembled for each architecture.
    fn cubins(&self, folder: &Path) -> Result<(), Stopped> {
        fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let mut count = 0;
        for (path, text) in self.files.iter().filter(|(path, _)| path.extension().is_some_and(|e| e == "ptx"))
        {
            let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
            let ptx = folder.join(format!("{name}.ptx"));
            fs::write(&ptx, text).map_err(|e| format!("{}: {e}", ptx.display()))?;
            for architecture in ARCHITECTURES {
                let cubin = folder.join(format!("{name}.{architecture}.cubin"));
                self.toolchain.assemble(&ptx, architecture, Some(&cubin))?;
                count += 1;
            }
            fs::remove_file(&ptx).map_err(|e| format!("{}: {e}", ptx.display()))?;
        }
        println!("{count} cubins in {}", folder.display());
        Ok(())
    }
}

/// A module as the table of the crate has it.
fn entries(name: &str, module: &Module) -> String {
    let entry = |kernel: &std::sync::Arc<Kernel>| {
        let (threads, shared) = (kernel.max_threads().unwrap_or(0), kernel.shared());
        let (kernel, parameters) = (kernel.name(), kernel.parameter_bytes());
        format!(
            "            Entry {{ name: \"{kernel}\", parameters: {parameters}, threads: {threads}, shared: {shared} }},\n"
        )
    };
    let entries: String = module.kernels().iter().map(entry).collect();
    format!("    Module {{\n        name: \"{name}\",\n        entries: &[\n{entries}        ],\n    }},\n")
}

fn rust(modules: &str) -> String {
    format!(
        "//! The kernels, as `cargo xtask kernels` made them.\n\nuse super::{{Entry, Module}};\n\n/// All modules.\n\
         pub(crate) const MODULES: &[Module] = &[\n{modules}];\n"
    )
}

/// Rust as `rustfmt` writes it.
fn formatted(root: &Path, text: &str) -> Result<String, String> {
    let failed = |e: std::io::Error| format!("rustfmt: {e}");
    let mut command = Command::new("rustfmt");
    command.args(["--edition", "2024"]).current_dir(root).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut rustfmt = command.spawn().map_err(failed)?;
    if let Some(mut input) = rustfmt.stdin.take() {
        input.write_all(text.as_bytes()).map_err(failed)?;
    }
    let output = rustfmt.wait_with_output().map_err(failed)?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err("rustfmt does not take the table of kernels".into()),
    }
}
