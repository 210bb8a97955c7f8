//! Packs the kernels' PTX, so that the program holds some hundred kilobytes of it and not megabytes. Where `TALLOW_CUDA_CUBINS`
//! names a folder that `cargo xtask kernels --cubins` filled, what it assembled is packed too.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use miniz_oxide::deflate::compress_to_vec;

/// Between size and the time that a build takes for it.
const LEVEL: u8 = 8;

fn main() -> io::Result<()> {
    println!("cargo:rerun-if-changed=ptx");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=TALLOW_CUDA_CUBINS");
    let out = env::var_os("OUT_DIR").map(PathBuf::from).unwrap_or_default();
    let cubins = match env::var_os("TALLOW_CUDA_CUBINS").map(PathBuf::from) {
        Some(folder) => {
            println!("cargo:rerun-if-changed={}", folder.display());
            names(&folder, ".cubin")?.into_iter().map(|name| folder.join(name)).collect()
        }
        None => Vec::new(),
    };
    let mut list = String::from("&[\n");
    for name in names(Path::new("ptx"), ".ptx")? {
        let module = name.trim_end_matches(".ptx");
        let ptx = packed(&Path::new("ptx").join(&name), &out)?;
        let _ = writeln!(list, "Packed {{ module: {module:?}, ptx: {ptx}, cubins: &[");
        for cubin in &cubins {
            // attention.sm_80.cubin
            let file = cubin.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let Some((of, architecture)) = file.trim_end_matches(".cubin").split_once(".sm_") else {
                continue;
            };
            if of == module {
                let _ = writeln!(list, "({architecture}, {}),", packed(cubin, &out)?);
            }
        }
        list.push_str("]},\n");
    }
    list.push(']');
    fs::write(out.join("packed.rs"), list)
}

/// Files of a folder whose names end so, in order.
fn names(folder: &Path, end: &str) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(end) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Packs a file, and returns the expression that includes it.
fn packed(file: &Path, out: &Path) -> io::Result<String> {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let to = out.join(format!("{name}.deflate"));
    let bytes = fs::read(file)?;
    fs::write(&to, compress_to_vec(&bytes, LEVEL))?;
    Ok(format!("Bytes {{ len: {}, packed: include_bytes!({to:?}) }}", bytes.len()))
}
