//! NaN and infinite weights: item 14. What a request gets then is in the engine's tests.

use serde_json::{Value, json};
use tallow_models::Model;

use crate::gguf::load;
use crate::gguf_file::{GgufFile, Q8_0};
use crate::{Dir, Said, folder, snapshot};

#[test]
fn c3_14_plain_weights() {
    let dir = Dir::new("14");
    let mut said = Said::new(&dir);
    for (case, x) in [("NaN", f32::NAN), ("Inf", f32::INFINITY), ("-Inf", f32::NEG_INFINITY)] {
        for (index, kind) in [(0, "embedding"), (1, "norm"), (4, "matrix")] {
            let file = GgufFile::good().changed(index, |t| t.data[40..44].copy_from_slice(&x.to_le_bytes()));
            let model = Model::open(&dir.write("model.gguf", &file.bytes())).unwrap();
            said.note(&format!("{case} in the {kind}"), load(&model).unwrap_err());
        }
    }
    // The same in 16-bit floats.
    for (dtype, bits) in [("F16", 0x7C00u16), ("F16", 0xFE00), ("BF16", 0x7F80), ("BF16", 0xFFC0)] {
        dir.write_folder();
        let (mut header, data) = folder::header();
        for (_, entry) in &mut header {
            let halved = |v: &Value| json!(v.as_u64().unwrap() / 2);
            let offsets = &entry["data_offsets"];
            entry["data_offsets"] = json!([halved(&offsets[0]), halved(&offsets[1])]);
            entry["dtype"] = json!(dtype);
        }
        let mut bytes = folder::file(Value::Object(header).to_string().as_bytes(), 0);
        let start = bytes.len();
        bytes.resize(start + data / 2, 0);
        bytes[start + 20..start + 22].copy_from_slice(&bits.to_le_bytes());
        dir.write("model.safetensors", &bytes);
        said.note(&format!("{dtype} {bits:#x}"), load(&Model::open(&dir.0).unwrap()).unwrap_err());
    }
    snapshot!(said);
}

/// Quantized blocks are not checked at load: reading every scale would take as long as a step, and the sampler reports
/// NaN logits.
#[test]
fn c3_14_scales_of_blocks() {
    let dir = Dir::new("14-blocks");
    let file = GgufFile::good().changed(0, |t| {
        t.kind = Q8_0;
        // Eight rows of one Q8_0 block: an f16 scale, then 32 codes.
        t.data = [vec![0x00, 0x7E], vec![1; 32]].concat().repeat(8);
    });
    let model = Model::open(&dir.write("model.gguf", &file.bytes())).unwrap();
    load(&model).unwrap();
}
