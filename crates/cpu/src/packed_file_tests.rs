//! Tests of [`packed_file`](crate::packed_file) with the device that packs.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;

use tallow_core::{Backend, Format, HostWeight, TensorId, Weight};

use crate::packed_file::{Header, MAGIC, MappedFile, PAGE, PackedFile, PackedFileWriter, VERSION, digest};
use crate::{Cpu, Isa};

/// Outputs of the weights: the last panels are partial ones.
const OUTPUTS: usize = 70;
const IDENTITY: [u8; 32] = [7; 32];

/// Bytes at an address as that of a mapping.
#[derive(Debug)]
struct Held {
    bytes: Vec<u8>,
    skip: usize,
    intact: bool,
}

impl Held {
    fn new(content: &[u8]) -> Held {
        let mut bytes = vec![0; content.len() + PAGE];
        let skip = bytes.as_ptr().align_offset(PAGE);
        bytes[skip..skip + content.len()].copy_from_slice(content);
        bytes.truncate(skip + content.len());
        Held { bytes, skip, intact: true }
    }
}

impl Deref for Held {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[self.skip..]
    }
}

impl MappedFile for Held {
    fn intact(&self) -> std::result::Result<(), String> {
        if self.intact { Ok(()) } else { Err("cut short".into()) }
    }
}

/// Inputs of the weights: the last chunk is a partial one, unless it is a block of the format.
fn inputs(format: Format) -> usize {
    let blocks_divide = |inputs: &usize| HostWeight::row_bytes(format, *inputs).is_some();
    Some(512 + 256 + 128).filter(blocks_divide).unwrap_or(512 + 256)
}

/// Rows of a weight in some format, whatever they mean.
fn rows(format: Format, seed: u64) -> Vec<u8> {
    let len = OUTPUTS * HostWeight::row_bytes(format, inputs(format)).unwrap();
    let next =
        |x: &u64| Some(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407));
    std::iter::successors(next(&seed), next).map(|x| (x >> 56) as u8).take(len).collect()
}

fn id(format: Format, matrix: usize) -> TensorId {
    TensorId { tensor: format!("blk.0.{format}.weight").into(), matrix, of: 3, cols: inputs(format) }
}

fn weight<'a>(format: Format, bytes: &'a [u8], id: &'a TensorId) -> HostWeight<'a> {
    HostWeight {
        tensor: Some(id),
        as_stored: true,
        ..HostWeight::new(format, OUTPUTS, inputs(format), bytes)
    }
}

fn bytes_of(weight: &Weight<Cpu>) -> Vec<u8> {
    let Weight::Blocks { data, .. } = weight else { panic!("{weight:?}") };
    // SAFETY: the buffer has that many bytes, and nobody writes them.
    unsafe { std::slice::from_raw_parts(data.buf().start(), data.bytes()) }.to_vec()
}

fn cpu() -> Cpu {
    Cpu::new(Isa::Scalar, 2).unwrap()
}

/// A file with three matrices of each format; the path is of this test alone.
fn written(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("tallow-packed-{name}-{}", std::process::id()));
    let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    let b = cpu().packing_into(PackedFileWriter::new(file, IDENTITY));
    for format in Format::ALL {
        for matrix in 0..3 {
            let (bytes, id) = (rows(format, matrix as u64), id(format, matrix));
            let packed = b.prepare(weight(format, &bytes, &id)).unwrap();
            assert_eq!(bytes_of(&packed), bytes_of(&cpu().prepare(weight(format, &bytes, &id)).unwrap()));
        }
    }
    // What comes from no tensor is packed into memory.
    b.prepare(HostWeight::new(Format::F32, 1, 32, &[0; 128])).unwrap();
    assert_eq!(b.finish_packing().unwrap(), std::fs::metadata(&path).unwrap().len());
    path
}

fn opened(content: &[u8]) -> io::Result<PackedFile> {
    PackedFile::open(Arc::new(Held::new(content)), &IDENTITY)
}

#[test]
fn weights_are_found_as_they_were_packed() {
    let path = written("found");
    let content = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let b = cpu().with_packed(vec![opened(&content).unwrap()], true);
    for format in Format::ALL {
        for matrix in 0..3 {
            let (bytes, id) = (rows(format, matrix as u64), id(format, matrix));
            let there = weight(format, &bytes, &id);
            let found = b.find_packed(&there).unwrap();
            assert_eq!(bytes_of(&found), bytes_of(&cpu().prepare(there).unwrap()), "{format} {matrix}");
            let other = TensorId { tensor: "blk.1".into(), ..id.clone() };
            assert!(b.find_packed(&weight(format, &bytes, &other)).is_none());
            assert!(b.find_packed(&HostWeight { tensor: None, ..there }).is_none());
            assert!(b.find_packed(&HostWeight { rows: OUTPUTS - 1, ..there }).is_none());
        }
        // The loader reads other bytes for this tensor than the one that packed it did.
        let (bytes, id) = (rows(format, 9), id(format, 0));
        assert!(b.find_packed(&weight(format, &bytes, &id)).is_none());
        let packed = b.prepare(weight(format, &bytes, &id)).unwrap();
        assert_eq!(bytes_of(&packed), bytes_of(&cpu().prepare(weight(format, &bytes, &id)).unwrap()));
    }
}

/// As gate and up are, where a file has their rows in turn.
#[test]
fn weights_that_are_made_of_one_matrix_are_told_apart() {
    let path = std::env::temp_dir().join(format!("tallow-packed-parts-{}", std::process::id()));
    let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    let b = cpu().packing_into(PackedFileWriter::new(file, IDENTITY));
    let id = id(Format::Q8_0, 1);
    let mut parts = vec![rows(Format::Q8_0, 1); 3];
    let middle = parts[0].len() / 2 + 3;
    parts[1][middle] ^= 1;
    parts[2][middle] ^= 2;
    let part = |bytes| HostWeight { as_stored: false, ..weight(Format::Q8_0, bytes, &id) };
    parts[..2].iter().for_each(|bytes| drop(b.prepare(part(bytes)).unwrap()));
    b.finish_packing().unwrap();
    let content = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let b = cpu().with_packed(vec![opened(&content).unwrap()], false);
    for bytes in &parts[..2] {
        assert_eq!(
            bytes_of(&b.find_packed(&part(bytes)).unwrap()),
            bytes_of(&cpu().prepare(part(bytes)).unwrap())
        );
    }
    assert!(b.find_packed(&part(&parts[2])).is_none());
    assert!(b.find_packed(&weight(Format::Q8_0, &parts[0], &id)).is_none());
}

#[test]
fn other_files_and_damaged_ones_are_refused() {
    let path = written("refused");
    let content = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let refused = |content: &[u8]| opened(content).unwrap_err().to_string();
    let other = PackedFile::open(Arc::new(Held::new(&content)), &[8; 32]).unwrap_err();
    assert_eq!(other.to_string(), "it was made of another model, or of another version of it");
    assert_eq!(refused(b""), "it is no file of packed weights");
    assert_eq!(refused(&[0; 8192]), "it is no file of packed weights");
    let mut newer = content.clone();
    newer[MAGIC.len()] += 1;
    assert_eq!(refused(&newer), "it was written by another version of this program");
    for cut in [content.len() - 1, content.len() / 2, PAGE, 100] {
        assert_eq!(refused(&content[..cut]), "it is damaged");
    }
    let index = Header::read(&content).unwrap().index.start as usize;
    for at in [index, index + 4, content.len() - 1] {
        let mut damaged = content.clone();
        damaged[at] ^= 0x40;
        assert_eq!(refused(&damaged), "it is damaged");
    }
    // An index whose digest is right and whose places are not.
    for (start, end) in [(1u64, 2), (PAGE as u64, u64::MAX), (2 * PAGE as u64, PAGE as u64)] {
        let index = [&1u32.to_le_bytes()[..], b"k", &start.to_le_bytes(), &end.to_le_bytes()].concat();
        let at = PAGE as u64..(PAGE + index.len()) as u64;
        let header = Header { version: VERSION, identity: IDENTITY, digest: digest(&index), index: at };
        let mut file = header.write();
        file.resize(PAGE, 0);
        assert_eq!(refused(&[file, index].concat()), "it is damaged");
    }
}

#[test]
fn a_file_that_is_cut_short_later_fails_the_step() {
    use tallow_core::Memory;
    let path = written("cut");
    let file = Held { intact: false, ..Held::new(&std::fs::read(&path).unwrap()) };
    std::fs::remove_file(&path).unwrap();
    let b = cpu().with_packed(vec![PackedFile::open(Arc::new(file), &IDENTITY).unwrap()], false);
    let t = b.alloc(tallow_core::DType::F32, 1, 1).unwrap();
    assert!(b.fetch(&[&t]).unwrap_err().to_string().contains("cut short"));
}

#[test]
fn what_could_not_be_written_is_said_at_the_end() {
    let path = std::env::temp_dir().join(format!("tallow-packed-readonly-{}", std::process::id()));
    std::fs::write(&path, b"").unwrap();
    let b = cpu().packing_into(PackedFileWriter::new(File::open(&path).unwrap(), IDENTITY));
    let (bytes, id) = (rows(Format::Q8_0, 1), id(Format::Q8_0, 0));
    assert!(b.prepare(weight(Format::Q8_0, &bytes, &id)).is_err());
    assert!(b.finish_packing().is_err());
    std::fs::remove_file(&path).unwrap();
}

/// A file of packed weights is used for as long as [`VERSION`] is the same.
#[test]
fn the_version_is_that_of_the_layout() {
    let packed = Format::ALL.map(|format| {
        let (bytes, id) = (rows(format, 5), id(format, 0));
        digest(&bytes_of(&cpu().prepare(weight(format, &bytes, &id)).unwrap())).to_le_bytes()
    });
    let all = digest(packed.as_flattened());
    assert_eq!(
        (VERSION, all),
        (2, 5_932_677_362_466_080_473),
        "packed weights have another layout: raise VERSION, and note the digest here"
    );
}
