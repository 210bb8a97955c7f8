//! The reference's blocks and their values, bit for bit, and the error of our quantizers against its own.

use std::collections::BTreeMap;

use tallow_quant::Format;
use tallow_support::{Golden, golden, json, tensors};

use super::{packed, unpacked};

fn blocks() -> BTreeMap<String, Golden> {
    let files = FILES.map(|(folder, file)| tensors(&golden(folder).join(file).with_extension("safetensors")));
    files.into_iter().flatten().collect()
}

/// The second is made by `tools/goldens/blocks.py` of formats that the first lacks.
const FILES: [(&str, &str); 2] = [("gguf-blocks", "blocks"), ("gguf-blocks-more", "blocks")];

/// A fact about a format in the goldens.
fn fact(format: Format, what: &str) -> Option<f64> {
    let files = FILES.map(|(folder, file)| json(&golden(folder).join(file).with_extension("json")));
    files.iter().find_map(|about| about["types"][format.name()][what].as_f64())
}

/// The formats that the reference has blocks of. It has none of F32 and F16, which need none, nor of those that no GGUF
/// file contains.
fn formats(of: &BTreeMap<String, Golden>) -> Vec<Format> {
    let known = |f: &Format| of.contains_key(&format!("{f}.quant.raw"));
    let (formats, others): (Vec<_>, Vec<_>) = Format::ALL.into_iter().partition(known);
    let [g32, g64, g128] = [Format::U4G32, Format::U4G64, Format::U4G128];
    assert_eq!(others, [Format::F32, Format::F16, Format::Q8K, Format::F8, g32, g64, g128]);
    formats
}

#[test]
fn facts_are_the_references() {
    for format in Format::ALL {
        let Some(id) = format.gguf_id().filter(|_| !matches!(format, Format::F32 | Format::F16)) else {
            continue;
        };
        assert_eq!(fact(format, "ggml_type"), Some(f64::from(id)), "{format}");
        assert_eq!(fact(format, "block"), Some(format.block_weights() as f64), "{format}");
        assert_eq!(fact(format, "bytes"), Some(format.block_bytes() as f64), "{format}");
    }
}

#[test]
fn unpacks_to_the_references_bits() {
    let of = blocks();
    for format in formats(&of) {
        for kind in ["quant", "fuzz"] {
            let Some(raw) = of.get(&format!("{format}.{kind}.raw")) else {
                assert_eq!((format, kind), (Format::BF16, "fuzz"));
                continue;
            };
            let got = unpacked(format, &raw.bytes);
            let want = of[&format!("{format}.{kind}.f32")].f32();
            assert_eq!(got.len(), want.len());
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                assert_eq!(got.to_bits(), want.to_bits(), "{format} {kind} {i}: {got} is not {want}");
            }
        }
    }
}

/// RMS error relative to the RMS of the weights. `None` where all weights are zero.
fn relative_error(got: &[f32], want: &[f32]) -> Option<f64> {
    let square = |x: f64| x * x;
    let error: f64 = got.iter().zip(want).map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
    let size: f64 = want.iter().map(|b| square(f64::from(*b))).sum();
    (size > 0.0).then(|| (error / size).sqrt())
}

#[test]
fn packs_as_well_as_the_reference() {
    let of = blocks();
    for format in formats(&of) {
        let src = of[&format!("{format}.quant.src")].f32();
        let theirs = of[&format!("{format}.quant.f32")].f32();
        let ours = unpacked(format, &packed(format, &src));

        let want = fact(format, "rms_relative_error").unwrap();
        let got = relative_error(&ours, &src).unwrap();
        println!("{format:8} {got:.6}, reference {want:.6}");
        assert!(got <= 1.03 * want, "{format}: {got}, the reference {want}");

        let size = format.block_weights().max(32);
        let rows = src.chunks(size).zip(ours.chunks(size)).zip(theirs.chunks(size)).enumerate();
        for (row, ((src, ours), theirs)) in rows {
            let (got, want) = (relative_error(ours, src), relative_error(theirs, src));
            match got.zip(want) {
                Some((got, want)) => {
                    assert!(got <= 1.03 * want, "{format} {row}: {got}, the reference {want}")
                }
                None => {
                    assert!(ours.iter().all(|w| w.to_bits() == 0), "{format} {row}: zeros became {ours:?}")
                }
            }
        }
    }
}
