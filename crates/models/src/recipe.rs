//! [`Recipe`]: which formats a model's matrices are quantized to while they are loaded.
//!
//! Sensitive matrices get more bits: the LM head; and V and FFN down projections in the first and the last layers and
//! every third between (llama.cpp's `use_more_bits`). Small tensors and position embeddings are not quantized: norms,
//! biases, routers, gates of whole heads.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use tallow_checkpoint::tensor_names::{Names, Slot};
use tallow_quant::Format;

/// Formats for a model's matrices (llama.cpp's ftype).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recipe {
    name: &'static str,
    /// `general.file_type` in GGUF files.
    id: u32,
    /// Most matrices.
    most: Format,
    /// V and down projections in some layers.
    more: Format,
    head: Format,
}

const fn recipe(name: &'static str, id: u32, most: Format, more: Format, head: Format) -> Recipe {
    Recipe { name, id, most, more, head }
}

/// Smallest to largest.
const ALL: [Recipe; 30] = {
    use Format::*;
    [
        recipe("q1_0", 40, Q1_0, Q1_0, Q6K),
        recipe("iq1_s", 24, IQ1S, Q2K, Q6K),
        recipe("tq1_0", 36, TQ1_0, TQ1_0, Q6K),
        recipe("iq1_m", 31, IQ1M, Q2K, Q6K),
        recipe("tq2_0", 37, TQ2_0, TQ2_0, Q6K),
        recipe("iq2_xxs", 19, IQ2XXS, Q2K, Q6K),
        recipe("q2_0", 41, Q2_0, Q2_0, Q6K),
        recipe("iq2_xs", 20, IQ2XS, Q3K, Q6K),
        recipe("iq2_s", 28, IQ2S, Q3K, Q6K),
        recipe("q2_k", 10, Q2K, Q4K, Q6K),
        recipe("iq3_xxs", 23, IQ3XXS, Q4K, Q6K),
        recipe("q3_k_s", 11, Q3K, Q3K, Q6K),
        recipe("iq3_s", 26, IQ3S, Q4K, Q6K),
        recipe("q3_k_m", 12, Q3K, Q5K, Q6K),
        recipe("mxfp4", 38, MXFP4, MXFP4, Q8_0),
        recipe("iq4_xs", 30, IQ4XS, Q5K, Q6K),
        recipe("nvfp4", 39, NVFP4, NVFP4, Q8_0),
        recipe("iq4_nl", 25, IQ4NL, Q5K, Q6K),
        recipe("q4_0", 2, Q4_0, Q4_0, Q6K),
        recipe("q4_k_s", 14, Q4K, Q5K, Q6K),
        recipe("q4_k_m", 15, Q4K, Q6K, Q6K),
        recipe("q4_1", 3, Q4_1, Q4_1, Q6K),
        recipe("q5_0", 8, Q5_0, Q5_0, Q6K),
        recipe("q5_k_s", 16, Q5K, Q5K, Q6K),
        recipe("q5_k_m", 17, Q5K, Q6K, Q6K),
        recipe("q5_1", 9, Q5_1, Q5_1, Q6K),
        recipe("q6_k", 18, Q6K, Q6K, Q6K),
        recipe("q8_0", 7, Q8_0, Q8_0, Q8_0),
        recipe("bf16", 32, BF16, BF16, BF16),
        recipe("f16", 1, F16, F16, F16),
    ]
};

impl FromStr for Recipe {
    type Err = String;

    fn from_str(text: &str) -> Result<Recipe, String> {
        let wanted = text.to_ascii_lowercase();
        let found = ALL.into_iter().find(|r| r.name == wanted);
        found.ok_or_else(|| {
            let names: Vec<&str> = ALL.iter().map(|r| r.name).collect();
            format!("there is no {text:?}; there are {}", names.join(", "))
        })
    }
}

impl fmt::Display for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Recipe {
    /// `general.file_type` in GGUF files.
    pub fn gguf_id(self) -> u32 {
        self.id
    }
}

/// A matrix's role, as far as it decides its bits.
///
/// Where files have one or another matrix of that name, the first of these counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Role {
    /// Not quantized.
    Kept,
    Head,
    /// V or FFN down projection of that layer.
    Telling(usize),
    Other,
}

impl Role {
    fn of(names: &Names, tied: bool, name: &str) -> Role {
        let role = |slot, layer| match slot {
            Slot::FfnGateInp | Slot::FfnGateInpShexp | Slot::PosEmbd => Role::Kept,
            Slot::SsmBetaAlpha | Slot::SsmBeta | Slot::SsmAlpha => Role::Kept,
            Slot::Output => Role::Head,
            Slot::TokenEmbd if tied => Role::Head,
            Slot::AttnV | Slot::AttnQkv => Role::Telling(layer),
            Slot::FfnDown | Slot::FfnDownExps | Slot::FfnDownShexp => Role::Telling(layer),
            _ => Role::Other,
        };
        names.find(name).map(|(slot, at)| role(slot, at.layer)).min().unwrap_or(Role::Other)
    }
}

/// A recipe, and what it needs to know of the model.
#[derive(Debug, Clone, Copy)]
pub struct Quantizing {
    /// The recipe.
    pub recipe: Recipe,
    /// True if matrices that are quantized already are quantized again.
    pub again: bool,
    /// True if the LM head is the embedding.
    pub tied: bool,
    /// Number of layers.
    pub layers: usize,
}

impl Quantizing {
    /// Format of rows of `cols` elements stored as `stored`. Quantized matrices stay as they are unless `again` is set:
    /// requantizing only loses more.
    pub(crate) fn format(&self, names: &Names, name: &str, (stored, cols): (Format, usize)) -> Format {
        match self.choice(names, name, (stored, cols)) {
            Some(choice) if stored.is_plain() || self.again => choice.fitting,
            _ => stored,
        }
    }

    /// The recipe's choice for a tensor; `None` if it leaves it alone.
    pub fn choice(&self, names: &Names, name: &str, (stored, cols): (Format, usize)) -> Option<Choice> {
        let wanted = match Role::of(names, self.tied, name) {
            Role::Kept => return None,
            Role::Head => self.recipe.head,
            Role::Telling(layer) if matters(layer, self.layers) => self.recipe.more,
            Role::Telling(_) | Role::Other => self.recipe.most,
        };
        Some(Choice { wanted, fitting: fitting(wanted, cols).unwrap_or(stored) })
    }
}

/// A recipe's choice for a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// The recipe's format, whatever the row length.
    pub wanted: Format,
    /// The format that fits the row length.
    pub fitting: Format,
}

/// Counts of what a recipe did to matrices.
#[derive(Debug, Default)]
pub struct Outcome {
    all: usize,
    /// Matrices that were quantized already and left alone, by format.
    kept: BTreeMap<String, usize>,
    /// Matrices that fell back to another format, by that and the wanted one.
    fallen: BTreeMap<(String, String), usize>,
}

impl Outcome {
    /// Counts a matrix that was stored as `stored` and became `got`.
    pub fn count(&mut self, stored: Format, choice: Choice, got: Format) {
        self.all += 1;
        if !stored.is_plain() && got == stored && choice.fitting != stored {
            *self.kept.entry(stored.to_string()).or_default() += 1;
        } else if got != choice.wanted {
            *self.fallen.entry((got.to_string(), choice.wanted.to_string())).or_default() += 1;
        }
    }

    /// Notes for the user who asked for that recipe.
    pub fn notes(&self, recipe: Recipe) -> Vec<String> {
        let all = self.all;
        let mut notes = Vec::new();
        let kept: usize = self.kept.values().sum();
        if kept > 0 {
            let kinds: Vec<&str> = self.kept.keys().map(String::as_str).collect();
            let kinds = kinds.join(" and ");
            let what = match kept == all {
                true => format!("--quant {recipe} changes nothing: the model is quantized already ({kinds})"),
                false => format!("{kept} of {all} matrices are quantized already and stay {kinds}"),
            };
            notes.push(what + "; `tallow convert --allow-requantize` would quantize again, and lose more");
        }
        let fallen: usize = self.fallen.values().sum();
        if fallen > 0 {
            let one =
                |((got, wanted), n): (&(String, String), &usize)| format!("{n} as {got} instead of {wanted}");
            let each: Vec<String> = self.fallen.iter().map(one).collect();
            notes.push(format!(
                "{fallen} of {all} matrices have rows that are no whole blocks of {recipe}: {}",
                each.join(", ")
            ));
        }
        notes
    }
}

/// True if a layer's sensitive matrices get more bits.
fn matters(layer: usize, layers: usize) -> bool {
    let eighth = layers / 8;
    layer < eighth || layer >= layers - eighth || (layer - eighth) % 3 == 2
}

/// That format, or the next finer one whose block size divides `cols`.
fn fitting(format: Format, cols: usize) -> Option<Format> {
    let smaller = match format {
        Format::IQ1S | Format::IQ1M | Format::TQ1_0 | Format::TQ2_0 | Format::Q1_0 => Format::Q2_0,
        Format::IQ2XXS | Format::IQ2XS | Format::IQ2S | Format::IQ3XXS | Format::IQ3S => Format::IQ4NL,
        Format::Q2K | Format::Q3K | Format::IQ4XS | Format::Q2_0 => Format::IQ4NL,
        Format::NVFP4 => Format::MXFP4,
        Format::Q4K => Format::Q5_0,
        Format::Q5K => Format::Q5_1,
        Format::Q6K => Format::Q8_0,
        other => other,
    };
    [format, smaller].into_iter().find(|f| cols.is_multiple_of(f.block_weights()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tallow_checkpoint::tensor_names::{GGUF, HF};

    #[test]
    fn matrices_get_what_they_matter() {
        let recipe: Recipe = "Q4_K_M".parse().unwrap();
        let of = |names: &Names, tied, name: &str, cols| {
            let how = Quantizing { recipe, again: false, tied, layers: 16 };
            how.format(names, name, (Format::BF16, cols)).to_string()
        };
        let mut said = String::new();
        for (names, list) in [
            (
                &HF,
                [
                    "model.layers.0.self_attn.v_proj",
                    "model.layers.7.self_attn.v_proj",
                    "model.layers.5.mlp.experts.12.down_proj",
                    "model.layers.3.mlp.up_proj",
                    "model.layers.3.mlp.gate",
                    "model.layers.3.mlp.gate_proj",
                    "model.embed_tokens",
                    "lm_head",
                ],
            ),
            (
                &GGUF,
                [
                    "blk.0.attn_v",
                    "blk.7.attn_v",
                    "blk.4.ffn_down_exps",
                    "blk.15.ffn_down",
                    "blk.3.ffn_gate_inp",
                    "blk.3.ffn_gate",
                    "token_embd",
                    "output",
                ],
            ),
        ] {
            for name in list {
                let name = format!("{name}.weight");
                let both = [256, 96, 40].map(|cols| of(names, false, &name, cols));
                said += &format!("{name}: {}, tied {}\n", both.join(" "), of(names, true, &name, 256));
            }
        }
        insta::assert_snapshot!(said);
        let how = Quantizing { recipe, again: false, tied: false, layers: 16 };
        assert_eq!(how.format(&HF, "lm_head.weight", (Format::Q4_0, 256)), Format::Q4_0);
        let how = Quantizing { again: true, ..how };
        assert_eq!(how.format(&HF, "lm_head.weight", (Format::Q4_0, 256)), Format::Q6K);
    }

    #[test]
    fn every_recipe_has_a_name() {
        for recipe in ALL {
            assert_eq!(recipe.to_string().parse(), Ok(recipe));
        }
        insta::assert_snapshot!("q9".parse::<Recipe>().unwrap_err());
    }
}
