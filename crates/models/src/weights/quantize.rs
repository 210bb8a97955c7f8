//! Matrices quantized or dequantized on the host on their way to a device.

use tallow_core::{Error, HostWeight};
use tallow_quant::Format;

/// A zeroed host buffer of `len` bytes; an error instead of an abort if memory runs out.
pub fn room(len: usize) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let out_of_memory = |_| Error::OutOfMemory { device: "the host".into(), asked: len };
    bytes.try_reserve_exact(len).map_err(out_of_memory)?;
    bytes.resize(len, 0);
    Ok(bytes)
}

/// Converts a matrix to format `to`, with one thread per core. `care`: the weight of each column's error (imatrix), if
/// known.
pub fn quantized(weight: &HostWeight<'_>, to: Format, care: Option<&[f32]>) -> Result<Vec<u8>, Error> {
    let HostWeight { format: from, rows, cols, bytes: source, .. } = *weight;
    let (Some(width), Some(wanted)) = (from.row_bytes(cols), to.row_bytes(cols)) else {
        return Ok(Vec::new());
    };
    let mut bytes = room(wanted.saturating_mul(rows))?;
    if width == 0 || wanted == 0 {
        return Ok(bytes);
    }
    let alike = vec![1.0; cols];
    let care = care.filter(|care| care.len() == cols).unwrap_or(&alike);
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let each = rows.div_ceil(cores).max(1);
    let some = |source: &[u8], target: &mut [u8]| {
        let mut row = vec![0.0; cols];
        for (source, target) in source.chunks_exact(width).zip(target.chunks_exact_mut(wanted)) {
            // Rows are whole blocks in both formats: the formats were chosen that way.
            let packed = tallow_quant::unpack(from, source, &mut row)
                .and_then(|()| tallow_quant::pack_with(to, &row, care, target));
            debug_assert!(packed.is_ok());
        }
    };
    std::thread::scope(|s| {
        for (source, target) in source.chunks(each * width).zip(bytes.chunks_mut(each * wanted)) {
            s.spawn(|| some(source, target));
        }
    });
    Ok(bytes)
}
