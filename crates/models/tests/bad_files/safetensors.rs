//! safetensors files and the index of their shards: items 8 to 11, and 15.

use std::fs::File;

use serde_json::{Value, json};
use tallow_models::Model;

use crate::gguf::load;
use crate::{Dir, Said, folder, snapshot};

#[test]
fn the_folder_that_is_changed_is_good() {
    let dir = Dir::new("good-folder");
    dir.write_folder();
    let model = Model::open(&dir.0).unwrap();
    load(&model).unwrap();
    assert_eq!(model.tokenizer().unwrap().vocab_size(), 6);
    // A header of odd length, so that no element is aligned.
    let (header, data) = folder::header();
    let odd = format!("{} ", Value::Object(header));
    dir.write("model.safetensors", &folder::file(odd.trim_end().as_bytes(), data));
    for spaces in 1..8 {
        let header = format!("{}{}", odd.trim_end(), " ".repeat(spaces));
        dir.write("model.safetensors", &folder::file(header.as_bytes(), data));
        load(&Model::open(&dir.0).unwrap()).unwrap();
    }
}

/// In safetensors files a tensor with a GGUF-style name is checked as any other.
#[test]
fn names_of_the_other_kind_of_file_mean_nothing() {
    let dir = Dir::new("names");
    let mut said = Said::new(&dir);
    dir.write_folder();
    let (mut header, data) = folder::header();
    let scalar = json!({"dtype": "F32", "shape": [], "data_offsets": [data, data + 4]});
    header.insert("token_embd.weight".into(), scalar);
    dir.write("model.safetensors", &folder::file(Value::Object(header).to_string().as_bytes(), data + 4));
    said.note("a scalar with a known name", load(&Model::open(&dir.0).unwrap()).unwrap_err());
    snapshot!(said);
}

#[test]
fn c3_08_parts_cut_short() {
    let dir = Dir::new("08-safetensors");
    dir.write_folder();
    let whole = folder::good();
    for len in (0..whole.len()).filter(|len| *len < 1500 || len % 509 == 0) {
        dir.write("model.safetensors", &whole[..len]);
        Said::new(&dir).opening(&format!("cut to {len} bytes"), &dir.0);
    }
    let mut said = Said::new(&dir);
    dir.write("model.safetensors", &whole[..whole.len() - 4000]);
    said.opening("cut within a tensor", &dir.0);
    snapshot!(said);
}

#[test]
#[cfg(unix)]
fn c3_08_parts_cut_short_while_open() {
    let dir = Dir::new("08-safetensors-open");
    let mut said = Said::new(&dir);
    dir.write_folder();
    let model = Model::open(&dir.0).unwrap();
    let file = dir.0.join("model.safetensors");
    File::options().write(true).open(file).unwrap().set_len(4096).unwrap();
    said.note("weights", load(&model).unwrap_err());
    snapshot!(said);
}

#[test]
fn c3_09_headers() {
    let dir = Dir::new("09");
    let mut said = Said::new(&dir);
    dir.write_folder();
    let mut open = |case: &str, bytes: &[u8]| {
        dir.write("model.safetensors", bytes);
        said.opening(case, &dir.0);
    };
    for len in [u64::MAX, 1 << 63, 150 << 20, 100_000, 0] {
        let mut bytes = folder::good();
        bytes[..8].copy_from_slice(&len.to_le_bytes());
        open(&format!("a header of {len} bytes"), &bytes);
    }
    open("empty", b"");
    open("seven bytes", &[0; 7]);
    open("not JSON", &folder::file(b"{\"a\": what}", 0));
    open("a list", &folder::file(b"[]", 0));
    open("a number", &folder::file(b"{\"a\": 1}", 0));
    open("not UTF-8", &folder::file(b"{\"\xFF\": {}}", 0));
    let nested = [b"{\"a\":".as_slice(), &b"[".repeat(100_000), &b"]".repeat(100_000), b"}"].concat();
    open("100000 lists deep", &folder::file(&nested, 0));
    let nested = [b"{\"a\":".repeat(100_000), b"1".to_vec(), b"}".repeat(100_000)].concat();
    open("100000 objects deep", &folder::file(&nested, 0));
    let many = format!(
        "{{\"a\": {{\"dtype\": \"F32\", \"shape\": [{}1], \"data_offsets\": [0, 4]}}}}",
        "1,".repeat(50_000)
    );
    dir.write("model.safetensors", &folder::file(many.as_bytes(), 4));
    said.note("50000 dimensions", load(&Model::open(&dir.0).unwrap()).unwrap_err());
    snapshot!(said);
}

/// A header longer than the limit, in a file long enough for it.
#[test]
fn c3_09_a_header_past_the_limit() {
    let dir = Dir::new("09-long");
    let mut said = Said::new(&dir);
    dir.write_folder();
    dir.write("model.safetensors", &(150u64 << 20).to_le_bytes());
    let file = File::options().write(true).open(dir.0.join("model.safetensors")).unwrap();
    file.set_len(200 << 20).unwrap();
    said.opening("150 MiB of header", &dir.0);
    snapshot!(said);
}

#[test]
fn c3_10_offsets() {
    let dir = Dir::new("10");
    let mut said = Said::new(&dir);
    dir.write_folder();
    let name = "model.norm.weight";
    let (header, data) = folder::header();
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut header = header.clone();
        change(&mut header[name]);
        folder::file(Value::Object(header).to_string().as_bytes(), data)
    };
    let (from, to) = (8 * 4 * folder::DIM, 9 * 4 * folder::DIM);
    let offsets = [
        ("reversed", json!([to, from])),
        ("negative", json!([-1, to])),
        ("longer than its shape", json!([from, to + 4])),
        ("shorter than its shape", json!([from, to - 4])),
        ("over another tensor", json!([from - 128, to - 128])),
        ("past the end", json!([from + (1 << 20), to + (1 << 20)])),
        ("2^64-1", json!([u64::MAX - 127, u64::MAX])),
        ("of three", json!([from, to, to])),
        ("a text", json!("0,128")),
    ];
    let mut open = |case: &str, bytes: &[u8]| {
        dir.write("model.safetensors", bytes);
        said.opening(case, &dir.0);
    };
    for (case, value) in offsets {
        open(&format!("offsets {case}"), &changed(&|t| t["data_offsets"] = value.clone()));
    }
    let shapes =
        [json!([1u64 << 40, 1u64 << 40]), json!([-32]), json!([1u64 << 62, 4, 32]), json!([32.5]), json!(32)];
    for shape in shapes {
        open(&format!("shape {shape}"), &changed(&|t| t["shape"] = shape.clone()));
    }
    open("a type that is a number", &changed(&|t| t["dtype"] = json!(31)));
    let mut holes = header.clone();
    holes.remove(name);
    open("a hole", &folder::file(Value::Object(holes).to_string().as_bytes(), data));
    let whole = Value::Object(header.clone()).to_string();
    open("bytes behind the last tensor", &folder::file(whole.as_bytes(), data + 4));
    // An empty tensor takes no bytes and may start where another does. It is still an unknown tensor.
    let mut empty = header.clone();
    empty.insert("empty".into(), json!({"dtype": "F32", "shape": [0], "data_offsets": [from, from]}));
    dir.write("model.safetensors", &folder::file(Value::Object(empty).to_string().as_bytes(), data));
    said.note("an empty tensor", load(&Model::open(&dir.0).unwrap()).unwrap_err());
    // A dtype that is not known here may have any size; the error comes when the tensor is used.
    for kind in ["I32", "F4"] {
        dir.write("model.safetensors", &changed(&|t| t["dtype"] = json!(kind)));
        said.note(&format!("elements of type {kind}"), load(&Model::open(&dir.0).unwrap()).unwrap_err());
    }
    let (mut first, mut second) = (header.clone(), header.clone());
    first.remove("model.norm.weight");
    second.retain(|name, _| name == "model.norm.weight");
    let twice = [first.clone(), second.clone(), second].map(|m| Value::Object(m).to_string());
    let twice = format!("{{{}}}", twice.map(|m| m[1..m.len() - 1].to_owned()).join(","));
    dir.write("model.safetensors", &folder::file(twice.as_bytes(), data));
    said.opening("one name twice", &dir.0);
    snapshot!(said);
}

#[test]
fn c3_11_the_index() {
    let dir = Dir::new("11");
    let mut said = Said::new(&dir);
    dir.write_folder();
    std::fs::rename(dir.0.join("model.safetensors"), dir.0.join("model-1.safetensors")).unwrap();
    std::fs::create_dir(dir.0.join("sub")).unwrap();
    let mut open = |case: &str, map: Value| {
        let index = json!({"metadata": {}, "weight_map": map}).to_string();
        dir.write("model.safetensors.index.json", index.as_bytes());
        said.opening(case, &dir.0);
    };
    open("a missing file", json!({"a": "model-2.safetensors"}));
    for name in ["../../x", "/etc/passwd", "..", ".", "", "a\\b", "a\0b", "C:x", &"x".repeat(300)] {
        open(&format!("the file {:?}", &name[..name.len().min(20)]), json!({"a": name}));
    }
    open("a folder", json!({"a": "sub"}));
    open("a file of another kind", json!({"a": "config.json"}));
    open("a number", json!({"a": 1}));
    open("no files", json!({}));
    open("a list", json!(["model-1.safetensors"]));
    dir.write("model.safetensors.index.json", b"{}");
    said.opening("no map", &dir.0);
    dir.write("model.safetensors.index.json", b"[1, 2");
    said.opening("not JSON", &dir.0);
    snapshot!(said);
}

#[test]
#[cfg(unix)]
fn c3_11_links_out_of_the_folder() {
    use std::os::unix::fs::symlink;

    let dir = Dir::new("11-links");
    let elsewhere = Dir::new("11-elsewhere");
    let mut said = Said::new(&dir);
    dir.write_folder();
    std::fs::rename(dir.0.join("model.safetensors"), elsewhere.0.join("secret")).unwrap();
    symlink(elsewhere.0.join("secret"), dir.0.join("out.safetensors")).unwrap();
    symlink(dir.0.join("loop.safetensors"), dir.0.join("loop.safetensors")).unwrap();
    for name in ["out.safetensors", "loop.safetensors"] {
        let index = json!({"weight_map": {"a": name}}).to_string();
        dir.write("model.safetensors.index.json", index.as_bytes());
        said.opening(name, &dir.0);
    }
    snapshot!(said);
}

/// In the hub's cache a snapshot's files are symlinks to the model's blobs and must not point elsewhere.
#[test]
#[cfg(unix)]
fn c3_11_links_out_of_the_cache() {
    use std::os::unix::fs::symlink;

    let cache = Dir::new("11-cache");
    let repo = cache.0.join("models--maker--name");
    let snapshot = repo.join("snapshots/1234");
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::create_dir_all(repo.join("blobs")).unwrap();
    std::fs::create_dir_all(cache.0.join("models--other--name/blobs")).unwrap();
    std::fs::write(snapshot.join("config.json"), folder::config().to_string()).unwrap();
    std::fs::write(repo.join("blobs/own"), folder::good()).unwrap();
    std::fs::write(cache.0.join("models--other--name/blobs/foreign"), folder::good()).unwrap();
    symlink("../../blobs/own", snapshot.join("own.safetensors")).unwrap();
    symlink("../../../models--other--name/blobs/foreign", snapshot.join("foreign.safetensors")).unwrap();
    let index = |name: &str| {
        let index = json!({"weight_map": {"a": name}}).to_string();
        std::fs::write(snapshot.join("model.safetensors.index.json"), index).unwrap();
    };
    index("own.safetensors");
    load(&Model::open(&snapshot).unwrap()).unwrap();
    index("foreign.safetensors");
    let mut said = Said::new(&cache);
    said.opening("another model's blob", &snapshot);
    snapshot!(said);
}

/// An index larger than the limit is refused before it is read.
#[test]
fn c3_11_an_index_past_the_limit() {
    let dir = Dir::new("11-long");
    let mut said = Said::new(&dir);
    dir.write_folder();
    std::fs::remove_file(dir.0.join("model.safetensors")).unwrap();
    dir.write("model.safetensors.index.json", b"{");
    let file = File::options().write(true).open(dir.0.join("model.safetensors.index.json")).unwrap();
    file.set_len(1 << 30).unwrap();
    said.opening("1 GiB", &dir.0);
    // A short one that parses to something large.
    dir.write("model.safetensors.index.json", format!("[{}[]]", "[],".repeat(3_000_000)).as_bytes());
    said.opening("nine million brackets", &dir.0);
    snapshot!(said);
}

#[test]
fn c3_15_pickles() {
    let dir = Dir::new("15");
    let mut said = Said::new(&dir);
    for name in ["pytorch_model.bin", "model.pt", "model.pth", "weights.PKL", "last.ckpt"] {
        let path = dir.write(name, b"\x80\x02cposix\nsystem\n");
        said.opening(&format!("the file {name}"), &path);
        dir.write("config.json", folder::config().to_string().as_bytes());
        said.opening(&format!("a folder with {name}"), &dir.0);
        std::fs::remove_file(dir.0.join("config.json")).unwrap();
        said.opening(&format!("a folder with {name} alone"), &dir.0);
        std::fs::remove_file(path).unwrap();
    }
    let named = dir.write("model.gguf", b"\x80\x02cposix\nsystem\n");
    said.opening("one that calls itself GGUF", &named);
    std::fs::remove_file(named).unwrap();
    dir.write_folder();
    let zip = b"PK\x03\x04\x00\x00\x08\x08archive/data.pkl";
    said.opening("one that calls itself safetensors", {
        dir.write("model.safetensors", zip);
        &dir.0
    });
    // Beside readable weights it is ignored.
    dir.write("model.safetensors", &folder::good());
    dir.write("pytorch_model.bin", zip);
    load(&Model::open(&dir.0).unwrap()).unwrap();
    snapshot!(said);
}
