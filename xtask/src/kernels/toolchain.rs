//! The compiler and the assemblers, from PyPI.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::server::step;

/// Wheels, pinned by hash: the folder to unpack to, and pip's requirement.
const WHEELS: [(&str, &str); 3] = [
    (
        "nvrtc",
        "nvidia-cuda-nvrtc-cu12==12.9.86 --hash=sha256:210cf05005a447e29214e9ce50851e83fc5f4358df8b453155d5e1918094dcb4",
    ),
    (
        "nvcc",
        "nvidia-cuda-nvcc-cu12==12.9.86 --hash=sha256:5d6a0d32fdc7ea39917c20065614ae93add6f577d840233237ff08e9a38f58f0",
    ),
    (
        "nvcc-older",
        "nvidia-cuda-nvcc-cu12==12.4.131 --hash=sha256:e4c9a35435c3b0e36c6397c5696334c9ea6650e524736cbd1c5d345ea099bb04",
    ),
];

pub(super) struct Toolchain {
    python: PathBuf,
    compiler: PathBuf,
    assembler: PathBuf,
    older: PathBuf,
    headers: PathBuf,
    /// The script that calls the compiler.
    script: PathBuf,
}

impl Toolchain {
    /// Finds what an earlier call has fetched, or fetches it.
    pub(super) fn fetch(work: &Path) -> Result<Toolchain, String> {
        if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
            return Err("the compiler's wheels are those for Linux on x86-64".into());
        }
        let venv = work.join("venv");
        let python = venv.join("bin/python");
        if !python.exists() {
            step(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
        }
        for (name, requirement) in WHEELS {
            let (folder, list) = (work.join(name), work.join(name).with_extension("txt"));
            if fs::read_to_string(&list).is_ok_and(|had| had == requirement) && folder.exists() {
                continue;
            }
            let partly = work.join(name).with_extension("part");
            _ = fs::remove_dir_all(&partly);
            _ = fs::remove_dir_all(&folder);
            let asked = work.join("asked.txt");
            fs::write(&asked, requirement).map_err(|e| format!("{}: {e}", asked.display()))?;
            let mut pip = Command::new(&python);
            pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]);
            step(pip.arg("--target").arg(&partly).args(["--require-hashes", "-r"]).arg(&asked))?;
            fs::rename(&partly, &folder).map_err(|e| format!("{}: {e}", folder.display()))?;
            fs::write(&list, requirement).map_err(|e| format!("{}: {e}", list.display()))?;
        }
        let within = |name: &str, path: &str| {
            let path = work.join(name).join("nvidia").join(path);
            path.exists().then_some(path).ok_or(format!("the wheel of {name} has not what it had"))
        };
        let headers = work.join("../../crates/cuda/kernels");
        Ok(Toolchain {
            python,
            compiler: within("nvrtc", "cuda_nvrtc/lib/libnvrtc.so.12")?,
            assembler: within("nvcc", "cuda_nvcc/bin/ptxas")?,
            older: within("nvcc-older", "cuda_nvcc/bin/ptxas")?,
            headers,
            script: work.join("../../xtask/src/kernels/nvrtc.py"),
        })
    }

    /// Compiles sources to PTX, each to a file of its name in `folder`.
    pub(super) fn compile(&self, sources: &[&Path], folder: &Path, target: &str) -> Result<(), String> {
        let mut python = Command::new(&self.python);
        python.arg(&self.script).arg(&self.compiler).arg(&self.headers).arg(folder).arg(target);
        step(python.args(sources))
    }

    /// Assembles a module, to nowhere unless `cubin` says so. Returns its kernels and the registers that each uses. Fails
    /// where one has a stack frame or spills.
    pub(super) fn assemble(
        &self,
        ptx: &Path,
        architecture: &str,
        cubin: Option<&Path>,
    ) -> Result<Vec<(String, usize)>, String> {
        let told = match cubin {
            Some(_) => told(&self.assembler, ptx, architecture, cubin)?,
            None => told_once(&self.assembler, ptx, &format!("{architecture}.txt"), architecture)?,
        };
        let (mut kernels, mut name) = (Vec::new(), String::new());
        for line in told.lines() {
            let line = line.trim().trim_start_matches("ptxas info").trim_start_matches([' ', ':']);
            if let Some(of) = line.strip_prefix("Function properties for ") {
                name = of.to_owned();
            } else if line.contains("bytes stack frame") {
                let is_free = line.split(", ").all(|part| part.starts_with("0 bytes"));
                if !is_free {
                    return Err(format!("{name} for {architecture}: {line}"));
                }
            } else if let Some(used) = line.strip_prefix("Used ") {
                let count = used.split(' ').next().and_then(|count| count.parse().ok());
                kernels.push((name.clone(), count.ok_or(format!("the assembler says {line:?}"))?));
            }
        }
        Ok(kernels)
    }

    /// Assembles it as drivers of that age do.
    pub(super) fn assemble_with_older(&self, ptx: &Path, architecture: &str) -> Result<(), String> {
        told_once(&self.older, ptx, &format!("{architecture}.older.txt"), architecture).map(|_| ())
    }
}

/// Output of the assembler for a module, which lies in a file beside it once it was assembled without an error.
fn told_once(assembler: &Path, ptx: &Path, extension: &str, architecture: &str) -> Result<String, String> {
    let kept = ptx.with_extension(extension);
    // The assembler's path does not say which one it is: the lists of wheels do.
    let key = WHEELS.map(|(_, requirement)| requirement).join("\n")
        + "\n"
        + &fs::read_to_string(ptx).map_err(|e| format!("{}: {e}", ptx.display()))?
        + "\n";
    if let Some(told) =
        fs::read_to_string(&kept).ok().and_then(|had| Some(had.strip_prefix(&key)?.to_owned()))
    {
        return Ok(told);
    }
    let told = told(assembler, ptx, architecture, None)?;
    fs::write(&kept, key + &told).map_err(|e| format!("{}: {e}", kept.display()))?;
    Ok(told)
}

/// Output of the assembler for a module.
fn told(assembler: &Path, ptx: &Path, architecture: &str, cubin: Option<&Path>) -> Result<String, String> {
    let nowhere = Path::new("/dev/null");
    let mut command = Command::new(assembler);
    command.arg(format!("-arch={architecture}")).arg("-v").arg(ptx).arg("-o").arg(cubin.unwrap_or(nowhere));
    let output = command.output().map_err(|e| format!("{}: {e}", assembler.display()))?;
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    match output.status.success() {
        true => Ok(said),
        false => Err(format!("{} for {architecture}:\n{said}", ptx.display())),
    }
}
