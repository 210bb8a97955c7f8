//! GGUF files: items 1 to 8.

use std::fs::File;
use std::ops::ControlFlow;

use tallow_cpu::{Cpu, Isa};
use tallow_models::Model;
use tallow_models::decoder::Decoder;

use crate::gguf_file::{DIM, GgufFile, Q8_0, array, float, tensor, text, texts, uint, value};
use crate::{Dir, Said, snapshot};

/// Loads a model onto a device.
pub(crate) fn load(model: &Model) -> Result<Decoder<Cpu>, tallow_models::LoadError> {
    Decoder::load(&Cpu::new(Isa::best(), 2).unwrap(), model, 16, &mut |_, _| ControlFlow::Continue(()))
}

#[test]
fn the_file_that_is_changed_is_good() {
    let dir = Dir::new("good");
    for (name, file) in [
        ("plain", GgufFile::good()),
        ("v2", GgufFile { version: 2, ..GgufFile::good() }),
        ("aligned to 8", GgufFile { align: 8, ..GgufFile::good().with("general.alignment", uint(8)) }),
        // Nothing that follows is aligned.
        (
            "not aligned",
            GgufFile {
                align: 1,
                ..GgufFile::good().with("general.alignment", uint(1)).with("odd", text("x"))
            },
        ),
    ] {
        let model =
            Model::open(&dir.write("model.gguf", &file.bytes())).unwrap_or_else(|e| panic!("{name}: {e}"));
        load(&model).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(model.tokenizer().unwrap().vocab_size(), 8);
    }
}

#[test]
fn c3_01_what_is_no_gguf_file() {
    let dir = Dir::new("01");
    let mut said = Said::new(&dir);
    said.gguf("empty", b"");
    said.gguf("seven bytes", b"GGUF\x03\0\0");
    said.gguf("another magic", &GgufFile { magic: *b"GGML", ..GgufFile::good() }.bytes());
    said.gguf("a web page", b"<!doctype html><html><body>404</body></html>");
    said.gguf(
        "a pointer of a large file store",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n",
    );
    said.gguf("version 0", &GgufFile { version: 0, ..GgufFile::good() }.bytes());
    said.gguf("version 1", &GgufFile { version: 1, ..GgufFile::good() }.bytes());
    said.gguf("version 4", &GgufFile { version: 4, ..GgufFile::good() }.bytes());
    said.gguf("version 2^32-1", &GgufFile { version: u32::MAX, ..GgufFile::good() }.bytes());
    said.gguf("big-endian", &GgufFile { version: 3u32.swap_bytes(), ..GgufFile::good() }.bytes());
    said.opening("no file", &dir.0.join("none.gguf"));
    snapshot!(said);
}

/// Opening a pipe would block forever.
#[test]
#[cfg(unix)]
fn c3_01_what_is_no_file() {
    let dir = Dir::new("01-pipe");
    let mut said = Said::new(&dir);
    let pipe = dir.0.join("pipe.gguf");
    let name = std::ffi::CString::new(pipe.to_str().unwrap()).unwrap();
    // SAFETY: `name` is a NUL-terminated string that outlives the call.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    said.opening("a pipe", &pipe);
    std::os::unix::fs::symlink("/dev/zero", dir.0.join("zero.gguf")).unwrap();
    said.opening("a device", &dir.0.join("zero.gguf"));
    std::fs::create_dir(dir.0.join("folder.gguf")).unwrap();
    said.opening("an empty folder", &dir.0.join("folder.gguf"));
    snapshot!(said);
}

#[test]
fn c3_02_counts_that_the_file_has_no_room_for() {
    let dir = Dir::new("02");
    let mut said = Said::new(&dir);
    for count in [u64::MAX, 1 << 63, (1 << 61) + 1, 100_000] {
        let good = GgufFile::good;
        said.gguf(&format!("{count} tensors"), &GgufFile { tensor_count: Some(count), ..good() }.bytes());
        said.gguf(&format!("{count} keys"), &GgufFile { pair_count: Some(count), ..good() }.bytes());
    }
    // As many as the file has room for, but the bytes are something else.
    said.gguf("20 keys", &GgufFile { pair_count: Some(20), ..GgufFile::good() }.bytes());
    said.gguf("13 tensors", &GgufFile { tensor_count: Some(13), ..GgufFile::good() }.bytes());
    snapshot!(said);
}

#[test]
fn c3_03_texts_longer_than_the_file() {
    let dir = Dir::new("03");
    let mut said = Said::new(&dir);
    for len in [u64::MAX, 1 << 63, 1 << 40, 100_000] {
        let long = len.to_le_bytes();
        said.gguf(
            &format!("a value of {len} bytes"),
            &GgufFile::good().with("general.name", value(8, &long)).bytes(),
        );
        let tokens = array(8, 2, &[&1u64.to_le_bytes()[..], b"a", &long].concat());
        said.gguf(
            &format!("a token of {len} bytes"),
            &GgufFile::good().with("tokenizer.ggml.tokens", tokens).bytes(),
        );
        let mut bytes = GgufFile::good().bytes();
        bytes[24..32].copy_from_slice(&long);
        said.gguf(&format!("a key of {len} bytes"), &bytes);
        let mut bytes = GgufFile::good().bytes();
        let name = bytes.windows(17).position(|w| w == b"token_embd.weight").unwrap();
        bytes[name - 8..name].copy_from_slice(&long);
        said.gguf(&format!("a tensor's name of {len} bytes"), &bytes);
    }
    said.gguf("a key that is not UTF-8", &{
        let mut bytes = GgufFile::good().bytes();
        bytes[32] = 0xFF;
        bytes
    });
    snapshot!(said);
}

#[test]
fn c3_04_arrays() {
    let dir = Dir::new("04");
    let mut said = Said::new(&dir);
    for (kind, count) in [(10, 1 << 61), (4, 1 << 62), (8, 1 << 61), (0, u64::MAX), (12, 4000)] {
        let list = array(kind, count, &[0; 16]);
        said.gguf(&format!("{count} elements of kind {kind}"), &GgufFile::good().with("list", list).bytes());
    }
    said.gguf("elements of no known kind", &GgufFile::good().with("list", array(13, 1, &[0; 16])).bytes());
    said.gguf("arrays within an array", &GgufFile::good().with("list", array(9, 1, &[0; 16])).bytes());
    said.gguf("a value of no known kind", &GgufFile::good().with("list", value(13, &[0; 16])).bytes());
    let heads = array(4, 1, &2u32.to_le_bytes());
    said.gguf(
        "an array where a number should be",
        &GgufFile::good().with("llama.attention.head_count", heads).bytes(),
    );
    said.gguf(
        "text where a number should be",
        &GgufFile::good().with("llama.attention.head_count", text("two")).bytes(),
    );
    said.gguf(
        "a number where text should be",
        &GgufFile::good().with("general.architecture", uint(3)).bytes(),
    );
    for (case, key, list) in [
        ("tokens that are numbers", "tokenizer.ggml.tokens", array(4, 1, &[0; 4])),
        ("merges that are truth values", "tokenizer.ggml.merges", array(7, 2, &[0, 1])),
        ("token types that are texts", "tokenizer.ggml.token_type", texts(&["a"])),
        ("token types that are floats", "tokenizer.ggml.token_type", array(6, 8, &[0; 32])),
    ] {
        let path = dir.write("model.gguf", &GgufFile::good().with(key, list).bytes());
        said.note(case, Model::open(&path).unwrap().tokenizer().map(drop).unwrap_err());
    }
    snapshot!(said);
}

#[test]
fn c3_05_alignment() {
    let dir = Dir::new("05");
    let mut said = Said::new(&dir);
    let minus = value(5, &(-32i32).to_le_bytes());
    let huge = value(10, &(1u64 << 63).to_le_bytes());
    let values = [("0", uint(0)), ("3", uint(3)), ("2^31", uint(1 << 31)), ("2^63", huge), ("-32", minus)];
    for (case, value) in values.into_iter().chain([("a float", float(32.0)), ("a text", text("32"))]) {
        said.gguf(case, &GgufFile::good().with("general.alignment", value).bytes());
    }
    snapshot!(said);
}

#[test]
fn c3_06_dimensions_and_types() {
    let dir = Dir::new("06");
    let mut said = Said::new(&dir);
    let shapes: [(&str, &[u64]); 9] = [
        ("a dimension of 0", &[DIM, 0]),
        ("a negative dimension", &[DIM, -8i64 as u64]),
        ("a dimension of 2^63", &[1 << 63, 1]),
        ("five dimensions", &[2, 2, 2, 2, 16]),
        ("no dimension", &[]),
        ("a product that overflows", &[1 << 40, 1 << 40]),
        ("a product that overflows to the right size", &[DIM, 8, 1 << 60, 16]),
        ("a row whose bytes overflow", &[1 << 62]),
        ("more than the file has", &[DIM, 1 << 40]),
    ];
    for (case, dims) in shapes {
        said.gguf(case, &GgufFile::good().changed(0, |t| t.dims = dims.into()).bytes());
    }
    for kind in [4, 31, 200, u32::MAX] {
        said.gguf(&format!("type {kind}"), &GgufFile::good().changed(0, |t| t.kind = kind).bytes());
    }
    let half_block = GgufFile::good().changed(0, |t| (t.kind, t.dims) = (Q8_0, vec![33, 8]));
    said.gguf("rows that are not whole blocks", &half_block.bytes());
    let mut bytes = GgufFile::good().bytes();
    let name = bytes.windows(17).position(|w| w == b"token_embd.weight").unwrap() + 17;
    bytes[name..name + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    said.gguf("2^32-1 dimensions", &bytes);
    // Wrong shapes are reported when the model is loaded.
    for (case, dims) in [("a wrong shape", vec![8, DIM]), ("a matrix that is a row", vec![DIM * DIM])] {
        let file = GgufFile::good().changed(4, |t| *t = tensor(&t.name, &dims));
        let model = Model::open(&dir.write("model.gguf", &file.bytes())).unwrap();
        said.note(case, load(&model).unwrap_err());
    }
    let mut file = GgufFile::good();
    file.tensors.remove(4);
    let model = Model::open(&dir.write("model.gguf", &file.bytes())).unwrap();
    said.note("a missing tensor", load(&model).unwrap_err());
    let mut file = GgufFile::good();
    file.tensors.push(tensor("blk.0.attn_magic.weight", &[DIM]));
    let model = Model::open(&dir.write("model.gguf", &file.bytes())).unwrap();
    said.note("a tensor that nobody knows", load(&model).unwrap_err());
    snapshot!(said);
}

#[test]
fn c3_07_places_and_names() {
    let dir = Dir::new("07");
    let mut said = Said::new(&dir);
    for offset in [1 << 20, u64::MAX - 31, 1 << 63] {
        let file = GgufFile::good().changed(0, |t| t.offset = Some(offset));
        said.gguf(&format!("offset {offset}"), &file.bytes());
    }
    said.gguf("not aligned", &GgufFile::good().changed(0, |t| t.offset = Some(4)).bytes());
    said.gguf("over another", &GgufFile::good().changed(1, |t| t.offset = Some(0)).bytes());
    said.gguf("over another in part", &GgufFile::good().changed(1, |t| t.offset = Some(992)).bytes());
    let name = GgufFile::good().tensors[4].name.clone();
    said.gguf("one name twice", &GgufFile::good().changed(5, |t| t.name = name).bytes());
    let mut file = GgufFile::good();
    file.pairs.push(("llama.block_count".into(), uint(1)));
    said.gguf("one key twice", &file.bytes());
    snapshot!(said);
}

#[test]
fn c3_08_files_cut_short() {
    let dir = Dir::new("08");
    let mut said = Said::new(&dir);
    let whole = GgufFile::good().bytes();
    for len in (0..whole.len()).filter(|len| *len < 1500 || len % 509 == 0) {
        Said::new(&dir).gguf(&format!("cut to {len} bytes"), &whole[..len]);
    }
    said.gguf("cut within a tensor", &whole[..whole.len() - 4000]);
    snapshot!(said);
}

/// A mapped file that is truncated: reading past its end would raise SIGBUS.
#[test]
#[cfg(unix)]
fn c3_08_files_cut_short_while_open() {
    let dir = Dir::new("08-open");
    let mut said = Said::new(&dir);
    // Bytes on the page that contains the new end stay readable, so all parts are large.
    let many: Vec<String> = (0..20_000).map(|i| format!("token-{i}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let mut file = GgufFile::good().with("tokenizer.ggml.tokens", texts(&many));
    file.tensors[0] = tensor("token_embd.weight", &[DIM, 20_000]);
    let bytes = file.bytes();
    let reopened = |len: u64| {
        let path = dir.write("model.gguf", &bytes);
        let model = Model::open(&path).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(len).unwrap();
        model
    };
    said.note("weights", load(&reopened(2 << 20)).unwrap_err());
    said.note("everything", load(&reopened(0)).unwrap_err());
    said.note("the vocabulary", reopened(4096).tokenizer().map(drop).unwrap_err());
    snapshot!(said);
}
