//! [`FileType`]: format of most of a model's matrices, as GGUF's `general.file_type` numbers it (llama.cpp's ftype).

use std::collections::HashMap;
use std::fmt;

use tallow_quant::Format;

/// A value of `general.file_type`, and llama.cpp's name for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileType {
    id: u32,
    name: &'static str,
}

/// File types in which most matrices have that format. The first is the default.
fn types(format: Format) -> &'static [(u32, &'static str)] {
    match format {
        Format::F32 => &[(0, "all F32")],
        Format::F16 => &[(1, "F16")],
        Format::BF16 => &[(32, "BF16")],
        Format::Q4_0 => &[(2, "Q4_0")],
        Format::Q4_1 => &[(3, "Q4_1")],
        Format::Q5_0 => &[(8, "Q5_0")],
        Format::Q5_1 => &[(9, "Q5_1")],
        Format::Q8_0 => &[(7, "Q8_0")],
        Format::Q2K => &[(10, "Q2_K - Medium"), (21, "Q2_K - Small")],
        Format::Q3K => &[(11, "Q3_K - Small"), (12, "Q3_K - Medium"), (13, "Q3_K - Large")],
        Format::Q4K => &[(14, "Q4_K - Small"), (15, "Q4_K - Medium")],
        Format::Q5K => &[(16, "Q5_K - Small"), (17, "Q5_K - Medium")],
        Format::Q6K => &[(18, "Q6_K")],
        Format::IQ1S => &[(24, "IQ1_S - 1.5625 bpw")],
        Format::IQ1M => &[(31, "IQ1_M - 1.75 bpw")],
        Format::IQ2XXS => &[(19, "IQ2_XXS - 2.0625 bpw")],
        Format::IQ2XS => &[(20, "IQ2_XS - 2.3125 bpw"), (28, "IQ2_S - 2.5 bpw")],
        Format::IQ2S => &[(28, "IQ2_S - 2.5 bpw"), (29, "IQ2_M - 2.7 bpw")],
        Format::IQ3XXS => &[(23, "IQ3_XXS - 3.0625 bpw"), (22, "IQ3_XS - 3.3 bpw")],
        Format::IQ3S => &[(26, "IQ3_S - 3.4375 bpw"), (27, "IQ3_S mix - 3.66 bpw"), (22, "IQ3_XS - 3.3 bpw")],
        Format::IQ4NL => &[(25, "IQ4_NL - 4.5 bpw")],
        Format::IQ4XS => &[(30, "IQ4_XS - 4.25 bpw")],
        Format::TQ1_0 => &[(36, "TQ1_0 - 1.69 bpw ternary")],
        Format::TQ2_0 => &[(37, "TQ2_0 - 2.06 bpw ternary")],
        Format::MXFP4 => &[(38, "MXFP4 MoE")],
        Format::NVFP4 => &[(39, "NVFP4")],
        Format::Q1_0 => &[(40, "Q1_0")],
        Format::Q2_0 => &[(41, "Q2_0")],
        Format::Q8K | Format::F8 | Format::U4G32 | Format::U4G64 | Format::U4G128 => &[],
    }
}

impl FileType {
    /// File type of a model in which most matrices have that format: the first of `said` that fits, else the default.
    /// `None` if no file type stands for the format.
    pub fn of(format: Format, said: impl IntoIterator<Item = u32>) -> Option<FileType> {
        let known = types(format);
        let kept = said.into_iter().find_map(|id| known.iter().find(|(known, _)| *known == id));
        kept.or(known.first()).map(|(id, name)| FileType { id: *id, name })
    }

    /// The value of `general.file_type`.
    pub fn id(self) -> u32 {
        self.id
    }
}

impl fmt::Display for FileType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// The format of most weights in layers. Embeddings and heads count only if there are no others: they often have more
/// bits than the rest.
pub fn dominant(matrices: impl Iterator<Item = (bool, Format, usize)>) -> Option<Format> {
    let mut counts: [HashMap<Format, usize>; 2] = Default::default();
    for (is_edge, format, weights) in matrices {
        *counts[usize::from(is_edge)].entry(format).or_default() += weights;
    }
    let most = |counts: &HashMap<Format, usize>| {
        // Ties go to the first in the list of formats, so that the result does not depend on the order of tensors.
        let of = |format: &&Format| counts.get(format).copied().unwrap_or(0);
        Format::ALL.iter().rev().max_by_key(of).copied()
    };
    counts.iter().find(|counts| !counts.is_empty()).and_then(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_is_kept_while_it_is_true() {
        let id = |format, said: &[u32]| FileType::of(format, said.iter().copied()).map(FileType::id);
        assert_eq!(id(Format::Q4K, &[15]), Some(15));
        assert_eq!(id(Format::Q4K, &[7, 15]), Some(15));
        assert_eq!(id(Format::Q8_0, &[15]), Some(7));
        assert_eq!(id(Format::Q4K, &[]), Some(14));
        // Q8_K is a format of activations; files do not use it.
        let stored = |format: &&Format| format.gguf_id().is_some() && **format != Format::Q8K;
        for format in Format::ALL.iter().filter(stored) {
            assert!(id(*format, &[]).is_some(), "{format} has no file type");
        }
    }

    #[test]
    fn layers_count_before_embeddings() {
        let of = |all: &[(bool, Format, usize)]| dominant(all.iter().copied());
        let layers = [(false, Format::Q4K, 10), (false, Format::Q6K, 4), (true, Format::Q8_0, 100)];
        assert_eq!(of(&layers), Some(Format::Q4K));
        assert_eq!(of(&layers[2..]), Some(Format::Q8_0));
        assert_eq!(of(&[]), None);
    }
}
