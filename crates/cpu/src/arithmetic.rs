//! [`Arithmetic`]: how exactly linear layers are computed.

use std::fmt;
use std::str::FromStr;

/// Precision of a linear layer's input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arithmetic {
    /// Quantized weights are multiplied with input quantized to 8 bits, with a scale for every 256 elements. Several
    /// times as fast as `Exact`.
    #[default]
    Fast,
    /// All in `f32`: for comparison with references.
    Exact,
}

impl Arithmetic {
    /// Both.
    pub const ALL: [Arithmetic; 2] = [Arithmetic::Fast, Arithmetic::Exact];

    /// Its name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Arithmetic::Fast => "fast",
            Arithmetic::Exact => "exact",
        }
    }
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
