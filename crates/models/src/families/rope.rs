//! Reading rotary embeddings: three generations of `config.json` and GGUF metadata, one [`RopeSpec`].

use tallow_core::RopePairs;
use tallow_quant::Format;

use super::common::{CONTEXT, sane};
use crate::blocks::rope::{RopeSpec, Scaling, Yarn};
use crate::error::Result;
use crate::formats::Kind;
use crate::formats::config::{Config, Key, key};

/// Tensors that belong to the settings: divisors of frequencies.
pub(super) const TENSORS: [&str; 3] = ["rope_freqs.weight", SHORT_TENSOR, LONG_TENSOR];
const SHORT_TENSOR: &str = "rope_factors_short.weight";
const LONG_TENSOR: &str = "rope_factors_long.weight";

const THETA: Key = key("rope_theta", "rope.freq_base");
const DIM: Key = key("", "rope.dimension_count");
const PART: Key = key("partial_rotary_factor", "");
const TYPE: Key = key("rope_type", "rope.scaling.type");
const OLD_TYPE: Key = key("type", "");
const FACTOR: Key = key("factor", "rope.scaling.factor");
const ORIGINAL: Key = key("original_max_position_embeddings", "rope.scaling.original_context_length");
const ATTENTION: Key = key("attention_factor", "rope.scaling.attn_factor");
const LOW: Key = key("low_freq_factor", "");
const HIGH: Key = key("high_freq_factor", "");
const BETA_FAST: Key = key("beta_fast", "rope.scaling.yarn_beta_fast");
const BETA_SLOW: Key = key("beta_slow", "rope.scaling.yarn_beta_slow");
const MSCALE: Key = key("mscale", "");
const MSCALE_ALL: Key = key("mscale_all_dim", "");
const TRUNCATE: Key = key("truncate", "");
const SHORT: Key = key("short_factor", "");
const LONG: Key = key("long_factor", "");

/// The rotary embedding of heads of `head` elements, where `theta` is the base unless the settings say otherwise.
pub(super) fn rope(c: &Config<'_>, head: usize, theta: f64) -> Result<RopeSpec> {
    // Newer configs keep it all under `rope_parameters`, there perhaps by kind of layer; older ones keep the scaling
    // under `rope_scaling` and the rest above it.
    let object = ["rope_parameters.full_attention", "rope_parameters", "rope_scaling"];
    let r = object.map(|o| c.under(o)).into_iter().find(|r| r.is_there()).unwrap_or(c.under("rope_scaling"));
    spec(c, &r, head, theta)
}

/// The rotary embedding of layers with a window, in families where it may be another than `full`, and is not scaled.
pub(super) fn window_rope(c: &Config<'_>, full: &RopeSpec, head: usize) -> Result<RopeSpec> {
    let r = c.under("rope_parameters.sliding_attention");
    if r.is_there() {
        return spec(c, &r, head, full.theta);
    }
    let theta = c.find_number(key("", "rope.freq_base_swa"))?.unwrap_or(full.theta);
    Ok(RopeSpec { theta, scaling: Scaling::None, ..full.clone() })
}

/// `c`: all settings; `r`: those about rotation.
fn spec(c: &Config<'_>, r: &Config<'_>, head: usize, theta: f64) -> Result<RopeSpec> {
    let theta = r.find_number(THETA)?.or(c.find_number(THETA)?).unwrap_or(theta);
    if theta <= 1.0 {
        return Err(c.bad(THETA, format_args!("is {theta}; more than 1 is expected")));
    }
    let part = r.find_number(PART)?.or(c.find_number(PART)?).unwrap_or(1.0);
    let dim = c.find_count(DIM)?.unwrap_or((head as f64 * part.clamp(0.0, 1.0)) as usize);
    if dim == 0 || dim > head || !dim.is_multiple_of(2) {
        let key = if c.is_gguf() { DIM } else { PART };
        return Err(c.bad(key, format_args!("makes {dim} turn; an even number up to {head} is expected")));
    }
    let read = Reader { c, r, dim };
    Ok(RopeSpec { theta, dim, pairs: RopePairs::Halves, scaling: read.scaling()? })
}

struct Reader<'a, 'c> {
    c: &'a Config<'c>,
    r: &'a Config<'c>,
    dim: usize,
}

impl Reader<'_, '_> {
    fn scaling(&self) -> Result<Scaling> {
        let r = self.r;
        if let Some(by) = self.divisors("rope_freqs.weight")? {
            return Ok(Scaling::Factors(by));
        }
        match r.find_text(TYPE)?.or(r.find_text(OLD_TYPE)?).unwrap_or("default") {
            "default" | "none" => Ok(Scaling::None),
            "linear" => Ok(Scaling::Linear { factor: self.positive(FACTOR)? }),
            "dynamic" if self.dim > 2 => {
                Ok(Scaling::Dynamic { factor: self.positive(FACTOR)?, original: self.context()? })
            }
            "llama3" => Ok(Scaling::Llama3 {
                factor: self.positive(FACTOR)?,
                low: self.positive(LOW)?,
                high: self.positive(HIGH)?,
                original: self.original()?,
            }),
            "yarn" => self.yarn().map(Scaling::Yarn),
            "longrope" | "su" => self.long(),
            other => {
                let known = "default, linear, dynamic, llama3, yarn and longrope are";
                Err(r.unsupported(TYPE, other, known))
            }
        }
    }

    fn positive(&self, key: Key) -> Result<f64> {
        match self.r.find_number(key)? {
            Some(x) if x > 0.0 => Ok(x),
            Some(x) => Err(self.r.bad(key, format_args!("is {x}; more than 0 is expected"))),
            None => Err(self.r.bad(key, "is missing")),
        }
    }

    fn context(&self) -> Result<usize> {
        sane(self.c, CONTEXT, self.c.count(CONTEXT)?)
    }

    /// The context that the model was trained on. Some configs have it above the other settings of rotation.
    fn original(&self) -> Result<usize> {
        let above = if self.c.is_gguf() { None } else { self.c.find_count(ORIGINAL)? };
        match above.or(self.r.find_count(ORIGINAL)?) {
            Some(n) => sane(self.r, ORIGINAL, n),
            None => self.context(),
        }
    }

    /// How much longer than the original context.
    fn factor(&self, original: usize) -> Result<f64> {
        match self.r.has(FACTOR) {
            true => self.positive(FACTOR),
            false => Ok(self.context()? as f64 / original as f64),
        }
    }

    fn yarn(&self) -> Result<Yarn> {
        let (r, original) = (self.r, self.original()?);
        let factor = self.factor(original)?;
        let sharper = |by: f64| if factor <= 1.0 { 1.0 } else { 0.1 * by * factor.ln() + 1.0 };
        let attention = match (r.find_number(ATTENTION)?, r.find_number(MSCALE)?, r.find_number(MSCALE_ALL)?)
        {
            // GGUF's factor comes on top of the usual one.
            (Some(x), ..) if self.c.is_gguf() => x * sharper(1.0),
            (Some(x), ..) => x,
            (None, Some(one), Some(all)) if one != 0.0 && all != 0.0 => sharper(one) / sharper(all),
            _ => sharper(1.0),
        };
        Ok(Yarn {
            factor,
            original,
            beta_fast: r.find_number(BETA_FAST)?.filter(|x| *x > 0.0).unwrap_or(32.0),
            beta_slow: r.find_number(BETA_SLOW)?.filter(|x| *x > 0.0).unwrap_or(1.0),
            truncate: r.flag_or(TRUNCATE, true)?,
            attention,
        })
    }

    fn long(&self) -> Result<Scaling> {
        let original = self.original()?;
        let factor = self.factor(original)?;
        let usual = match factor <= 1.0 || original <= 1 {
            true => 1.0,
            false => (1.0 + factor.ln() / (original as f64).ln()).sqrt(),
        };
        let attention = self.r.find_number(ATTENTION)?.unwrap_or(usual);
        let list = |key: Key, tensor: &str| -> Result<Vec<f64>> {
            let list = match self.c.is_gguf() {
                true => self.divisors(tensor)?,
                false => self.r.find_numbers(key)?,
            };
            let list =
                list.ok_or_else(|| self.r.bad(key, format_args!("({tensor} in GGUF files) is missing")))?;
            self.check(key, list)
        };
        Ok(Scaling::Long {
            short: list(SHORT, SHORT_TENSOR)?,
            long: list(LONG, LONG_TENSOR)?,
            original,
            attention,
        })
    }

    fn check(&self, key: Key, list: Vec<f64>) -> Result<Vec<f64>> {
        let want = self.dim / 2;
        if list.len() != want || list.iter().any(|x| *x <= 0.0) {
            let why = format!("has {} entries; {want} of more than 0 are expected", list.len());
            return Err(self.r.bad(key, why));
        }
        Ok(list)
    }

    /// Divisors of frequencies that a GGUF file keeps as a tensor.
    fn divisors(&self, name: &str) -> Result<Option<Vec<f64>>> {
        let Some(stored) = self.c.checkpoint().get(name).filter(|_| self.c.is_gguf()) else {
            return Ok(None);
        };
        let mut by = vec![0.0f32; self.dim / 2];
        let fits = stored.shape == [by.len()] && stored.kind == Kind::Weights(Format::F32);
        if !fits || tallow_quant::unpack(Format::F32, stored.bytes(), &mut by).is_err() {
            let why = format!(
                "tensor {name:?} is {:?}{:?}; {} numbers are expected",
                stored.kind,
                stored.shape,
                by.len()
            );
            return Err(self.c.bad(DIM, why));
        }
        self.check(DIM, by.into_iter().map(f64::from).collect()).map(Some)
    }
}
