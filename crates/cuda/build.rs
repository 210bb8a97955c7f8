//! Packs the kernels' PTX, so that the program holds some hundred kilobytes of it and not megabytes. Where `TALLOW_CUDA_CUBINS`
//! names a folder that `cargo xtask kernels --cubins` filled, what it assembled is packed too.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use lzma_rust2::{LzmaOptions, LzmaWriter};

fn main() -> io::Result<()> {
    println!("cargo:rerun-if-changed=ptx");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=TALLOW_CUDA_CUBINS");
    let out = env::var_os("OUT_DIR").map(PathBuf::from).unwrap_or_default();
    let mut cubins = BTreeMap::<u32, Vec<File>>::new();
    if let Some(folder) = env::var_os("TALLOW_CUDA_CUBINS").map(PathBuf::from) {
        println!("cargo:rerun-if-changed={}", folder.display());
        for File { name, path } in files(&folder, ".cubin")? {
            // attention.sm_80
            let Some((module, architecture)) = name.split_once(".sm_") else { continue };
            let Ok(architecture) = architecture.parse() else { continue };
            cubins.entry(architecture).or_default().push(File { name: module.to_owned(), path });
        }
    }
    let mut list =
        format!("static PTX: Archive = {};\n", pack("ptx", &files(Path::new("ptx"), ".ptx")?, &out)?);
    list.push_str("static CUBINS: &[(u32, Archive)] = &[\n");
    for (architecture, cubins) in &cubins {
        let _ = writeln!(list, "({architecture}, {}),", pack(&format!("sm_{architecture}"), cubins, &out)?);
    }
    list.push_str("];\n");
    fs::write(out.join("packed.rs"), list)
}

struct File {
    /// Its name, without what all end with.
    name: String,
    path: PathBuf,
}

/// Files of a folder whose names end so, in order.
fn files(folder: &Path, end: &str) -> io::Result<Vec<File>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(end));
        if let Some(name) = name {
            files.push(File { name: name.to_owned(), path });
        }
    }
    files.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(files)
}

/// Packs files as one stream, and returns the expression that includes it.
fn pack(archive: &str, files: &[File], out: &Path) -> io::Result<String> {
    let (mut bytes, mut names) = (Vec::new(), String::new());
    for File { name, path } in files {
        bytes.extend(fs::read(path)?);
        let _ = write!(names, "({name:?}, {}), ", bytes.len());
    }
    // A dictionary of all that comes before.
    let options =
        LzmaOptions { dict_size: bytes.len().next_power_of_two() as u32, ..LzmaOptions::with_preset(6) };
    let mut writer = LzmaWriter::new_use_header(Vec::new(), &options, Some(bytes.len() as u64))?;
    writer.write_all(&bytes)?;
    let to = out.join(format!("{archive}.lzma"));
    fs::write(&to, writer.finish()?)?;
    Ok(format!("Archive::new(include_bytes!({to:?}), &[{names}])"))
}
