//! [`Arithmetic`]: the precision with which linear layers are computed, on every device.

use std::fmt;
use std::str::FromStr;

use tallow_quant::Format;

/// Inputs that share a scale in [`Arithmetic::Fast`].
const INPUTS_PER_SCALE: usize = 256;

/// Precision of a linear layer's input. A device may be more exact than it is asked to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arithmetic {
    /// Quantized weights are multiplied with input quantized to 8 bits, with a scale for every 256 elements, and BF16 weights
    /// with input rounded to bf16 where the device has dot products of bf16. On a CPU several times as fast as `Exact`.
    #[default]
    Fast,
    /// Everything in `f32`, for comparison with references.
    Exact,
}

impl Arithmetic {
    /// Both.
    pub const ALL: [Arithmetic; 2] = [Arithmetic::Fast, Arithmetic::Exact];

    /// A row of a linear layer's input as it is multiplied with quantized weights of a format, at the least precision allowed;
    /// of a format that is not quantized, as it is.
    pub fn round_input(self, format: Format, x: &[f32]) -> Vec<f32> {
        let is_rounded = self == Arithmetic::Fast && !format.is_plain() && format != Format::F8;
        if is_rounded { x.chunks(INPUTS_PER_SCALE).flat_map(eight_bits).collect() } else { x.to_vec() }
    }

    /// Name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Arithmetic::Fast => "fast",
            Arithmetic::Exact => "exact",
        }
    }
}

/// Values rounded to 127 steps of the largest one on either side of 0.
fn eight_bits(x: &[f32]) -> impl Iterator<Item = f32> {
    let most = x.iter().fold(0f32, |most, x| most.max(x.abs()));
    let (scale, inverse) = (most / 127.0, if most > 0.0 { 127.0 / most } else { 0.0 });
    x.iter().map(move |x| (x * inverse).round_ties_even() * scale)
}

impl fmt::Display for Arithmetic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Arithmetic {
    type Err = String;

    fn from_str(s: &str) -> Result<Arithmetic, String> {
        let known = || Arithmetic::ALL.map(Arithmetic::name).join(", ");
        Arithmetic::ALL
            .into_iter()
            .find(|a| a.name() == s)
            .ok_or_else(|| format!("{s:?} is none of {}", known()))
    }
}
