//! Reads RoPE settings from three generations of `config.json` and from GGUF metadata into one [`RopeSpec`].

use tallow_checkpoint::Kind;
use tallow_checkpoint::Result;
use tallow_checkpoint::config::{Config, Key, key};
use tallow_core::RopePairs;
use tallow_quant::Format;

use super::sizes::{CONTEXT, sane};
use crate::spec::rope::{RopeSpec, Scaling, Yarn};

/// Tensors that are part of the settings: per-frequency divisors.
pub(super) const TENSORS: [&str; 3] = ["rope_freqs.weight", SHORT_TENSOR, LONG_TENSOR];
const SHORT_TENSOR: &str = "rope_factors_short.weight";
const LONG_TENSOR: &str = "rope_factors_long.weight";

pub(super) const THETA: Key = key("rope_theta", GGUF_THETA);
pub(super) const GGUF_THETA: &str = "rope.freq_base";
const GGUF_WINDOW_THETA: &str = "rope.freq_base_swa";
const LOCAL_THETA: Key = key("rope_local_base_freq", GGUF_WINDOW_THETA);
const TEMPERATURE: Key = key("llama_4_scaling_beta", "");
const DIM: Key = key("", "rope.dimension_count");
pub(super) const PART: Key = key("partial_rotary_factor", "");
const TYPE: Key = key("rope_type", "rope.scaling.type");
const OLD_TYPE: Key = key("type", "");
const FACTOR: Key = key("factor", "rope.scaling.factor");
const ORIGINAL: Key = key("original_max_position_embeddings", "rope.scaling.original_context_length");
const ATTENTION: Key = key("attention_factor", "rope.scaling.attn_factor");
/// M-RoPE: number of pairs that rotate by time, height and width. For text all three positions are the same.
pub const SECTIONS: Key = key("mrope_section", "rope.dimension_sections");
const LOW: Key = key("low_freq_factor", "");
const HIGH: Key = key("high_freq_factor", "");
const BETA_FAST: Key = key("beta_fast", "rope.scaling.yarn_beta_fast");
const BETA_SLOW: Key = key("beta_slow", "rope.scaling.yarn_beta_slow");
const MSCALE: Key = key("mscale", "");
const MSCALE_ALL: Key = key("mscale_all_dim", "");
/// 0.1 × `mscale_all_dim`.
const GGUF_SHARPENING: Key = key("", "rope.scaling.yarn_log_multiplier");
const TRUNCATE: Key = key("truncate", "");
const SHORT_ATTENTION: Key = key("short_mscale", "");
const LONG_ATTENTION: Key = key("long_mscale", "");
const SHORT: Key = key("short_factor", "");
const LONG: Key = key("long_factor", "");

/// A family's RoPE keys, and the defaults where a key is missing.
#[derive(Debug, Clone, Copy)]
pub(super) struct Defaults {
    /// Base of the frequencies.
    pub theta: (Key, f64),
    /// Fraction of a head that is rotated (partial rotary), in families that have the key.
    pub part: Option<(Key, f64)>,
    /// Original context length, for scalings that need one.
    pub original: Option<usize>,
    /// True if the ends of YaRN's correction range are rounded to integers for GGUF files, which do not have the flag.
    pub gguf_truncate: bool,
}

/// Defaults of most families.
pub(super) const DEFAULTS: Defaults =
    Defaults { theta: (THETA, GGUF_BASE), part: None, original: None, gguf_truncate: true };

/// Base in GGUF files without the key, whatever the family.
const GGUF_BASE: f64 = 10_000.0;

/// The RoPE settings. Newer configs keep them in `rope_parameters`, possibly per layer type; older ones keep the
/// scaling in `rope_scaling` and the rest at the top level.
fn scope<'a>(c: &Config<'a>) -> Config<'a> {
    let object = ["rope_scaling", "rope_parameters.full_attention", "rope_parameters"];
    object.map(|o| c.under(o)).into_iter().find(|r| r.says_something()).unwrap_or(c.under("rope_scaling"))
}

/// RoPE of heads with `head` elements.
pub(super) fn rope(c: &Config<'_>, head: usize, defaults: &Defaults) -> Result<RopeSpec> {
    spec(c, &scope(c), head, defaults)
}

/// Returns an error for a scaling type that the family does not have.
pub(super) fn only(c: &Config<'_>, kinds: &[&str]) -> Result<()> {
    let r = scope(c);
    let kind = r.find_text(TYPE)?.or(r.find_text(OLD_TYPE)?).unwrap_or("default");
    match c.is_gguf() || kinds.contains(&kind) {
        true => Ok(()),
        false => Err(r.unsupported(TYPE, kind, format_args!("this family has {}", kinds.join(", ")))),
    }
}

/// True if the files have RoPE scaling settings, even `default`. Always true for GGUF files.
pub(super) fn is_said(c: &Config<'_>) -> bool {
    c.is_gguf() || scope(c).says_something()
}

/// Reads the M-RoPE sections. Nothing here uses them, but reading records them for GGUF conversion: other readers need
/// the key.
pub(super) fn sections(c: &Config<'_>) -> Result<()> {
    scope(c).counts_or(SECTIONS, &[11, 11, 10]).map(|_| ())
}

/// `mscale_all_dim`, by which YaRN raises the attention scale in families that do so; `None` without scaling.
pub fn sharpening(c: &Config<'_>) -> Result<Option<f64>> {
    let r = scope(c);
    let kind = r.find_text(TYPE)?.or(r.find_text(OLD_TYPE)?).unwrap_or("default");
    if !c.is_gguf() {
        return Ok(r.find_number(MSCALE_ALL)?.filter(|all| *all != 0.0 && kind != "default"));
    }
    match (kind, r.find_number(GGUF_SHARPENING)?) {
        ("yarn", Some(tenth)) if tenth != 0.0 => Ok(Some(10.0 * tenth)),
        // Programs disagree on the default where the key is missing.
        ("yarn", _) => Err(r.bad(GGUF_SHARPENING, "is missing: how sharp attention is cannot be told")),
        _ => Ok(None),
    }
}

/// Factor on attention scores in those families: (0.1 m ln(factor) + 1)².
pub(super) fn sharpness(c: &Config<'_>) -> Result<f64> {
    let r = scope(c);
    let Some(all) = sharpening(c)? else { return Ok(1.0) };
    let factor = r.find_number(FACTOR)?.ok_or_else(|| r.bad(FACTOR, "is missing"))?;
    Ok(if factor <= 1.0 { 1.0 } else { (0.1 * all * factor.ln() + 1.0).powi(2) })
}

/// Factors on cos and sin for short and long contexts, in families that set them explicitly (`short_mscale`,
/// `long_mscale`).
pub(super) fn attention(c: &Config<'_>) -> Result<[f64; 2]> {
    let r = scope(c);
    let of = |key| r.find_number(key)?.ok_or_else(|| r.bad(key, "is missing"));
    Ok([of(SHORT_ATTENTION)?, of(LONG_ATTENTION)?])
}

/// Scaling of queries by position (`Scaling::Temperature`; Llama 4's temperature tuning).
pub(super) fn temperature(c: &Config<'_>, rope: &RopeSpec, head: usize) -> Result<RopeSpec> {
    let r = scope(c);
    let scale = r.find_number(TEMPERATURE)?.ok_or_else(|| r.bad(TEMPERATURE, "is missing"))?;
    let original = Reader { c, r: &r, dim: head, defaults: &DEFAULTS }.original()?;
    Ok(RopeSpec { dim: head, scaling: Scaling::Temperature { scale, original, early: 0 }, ..rope.clone() })
}

/// RoPE of sliding-window layers, in families where it may differ from `full` and is not scaled.
pub(super) fn window_rope(c: &Config<'_>, full: &RopeSpec, head: usize) -> Result<RopeSpec> {
    let r = c.under("rope_parameters.sliding_attention");
    if r.is_there() {
        return spec(c, &r, head, &Defaults { theta: (THETA, full.theta), ..DEFAULTS });
    }
    let key = key("", GGUF_WINDOW_THETA);
    let theta = base(c, key, c.find_number(key)?.unwrap_or(full.theta))?;
    Ok(RopeSpec { theta, scaling: Scaling::None, ..full.clone() })
}

/// RoPE of sliding-window layers, in families where it is independent of `full`.
pub(super) fn local_rope(c: &Config<'_>, full: &RopeSpec) -> Result<RopeSpec> {
    let theta = base(c, LOCAL_THETA, c.find_number(LOCAL_THETA)?.unwrap_or(10_000.0))?;
    let r = c.under("rope_parameters.sliding_attention");
    if r.is_there() {
        return spec(&r, &r, full.dim, &Defaults { theta: (THETA, theta), ..DEFAULTS });
    }
    Ok(RopeSpec { theta, scaling: Scaling::None, ..full.clone() })
}

/// [`local_rope`] with another key for the base; an older `rope_scaling` then applies to all layers.
pub(super) fn local_rope_as(c: &Config<'_>, full: &RopeSpec, key: Key) -> Result<RopeSpec> {
    let theta = base(c, key, c.find_number(key)?.unwrap_or(10_000.0))?;
    let objects = ["rope_parameters.sliding_attention", "rope_scaling"].map(|object| c.under(object));
    match objects.iter().find(|r| r.is_there()) {
        Some(r) => spec(c, r, full.dim, &Defaults { theta: (key, theta), ..DEFAULTS }),
        None => Ok(RopeSpec { theta, scaling: Scaling::None, ..full.clone() }),
    }
}

/// Checks a RoPE base.
fn base(c: &Config<'_>, key: Key, theta: f64) -> Result<f64> {
    match theta > 1.0 {
        true => Ok(theta),
        false => Err(c.bad(key, format_args!("is {theta}; more than 1 is expected"))),
    }
}

/// Reads a [`RopeSpec`]. `c`: all settings; `r`: the RoPE ones.
fn spec(c: &Config<'_>, r: &Config<'_>, head: usize, defaults: &Defaults) -> Result<RopeSpec> {
    let left_out = |value: f64, gguf: f64| if c.is_gguf() { gguf } else { value };
    let (key, value) = defaults.theta;
    let theta = r.find_number(THETA)?.or(c.find_number(key)?).unwrap_or(left_out(value, GGUF_BASE));
    let theta = base(c, THETA, theta)?;
    let (key, part) = match defaults.part {
        Some((key, value)) => {
            (key, r.find_number(PART)?.or(c.find_number(key)?).unwrap_or(left_out(value, 1.0)))
        }
        None => (THETA, 1.0),
    };
    let dim = c.find_count(DIM)?.unwrap_or((head as f64 * part.clamp(0.0, 1.0)) as usize);
    if dim == 0 || dim > head || (c.is_gguf() && !dim.is_multiple_of(2)) {
        let key = if c.is_gguf() { DIM } else { key };
        return Err(c.bad(
            key,
            format_args!("rotates {dim} elements of a head; an even number up to {head} is expected"),
        ));
    }
    let read = Reader { c, r, dim, defaults };
    Ok(RopeSpec { theta, dim, pairs: RopePairs::Halves, scaling: read.scaling()? })
}

/// Divides the first `rotated` of `pairs` frequencies by `factor`; the rest become 0 (divisor ∞).
pub(super) fn some_of(pairs: usize, rotated: usize, factor: f64) -> Scaling {
    Scaling::Factors((0..pairs).map(|i| if i < rotated { factor } else { f64::INFINITY }).collect())
}

struct Reader<'a, 'c> {
    c: &'a Config<'c>,
    r: &'a Config<'c>,
    dim: usize,
    defaults: &'a Defaults,
}

impl Reader<'_, '_> {
    fn scaling(&self) -> Result<Scaling> {
        let r = self.r;
        if let Some(by) = self.divisors("rope_freqs.weight")? {
            return Ok(Scaling::Factors(by));
        }
        if self.c.is_gguf() && self.c.checkpoint().get(LONG_TENSOR).is_some() {
            return self.long();
        }
        match r.find_text(TYPE)?.or(r.find_text(OLD_TYPE)?).unwrap_or("default") {
            // For text all M-RoPE axes have the same position.
            "default" | "none" | "mrope" => Ok(Scaling::None),
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
            // Some early LongRoPE files use the type `yarn`.
            "yarn" if r.has(SHORT) => self.long(),
            // The correction range is defined on whole pairs.
            "yarn" if self.dim.is_multiple_of(2) => self.yarn().map(Scaling::Yarn),
            "longrope" | "su" => self.long(),
            "proportional" => self.proportional(),
            kind @ ("dynamic" | "yarn") => {
                let known = format_args!("default is, where {} elements of a head are rotated", self.dim);
                Err(r.unsupported(TYPE, kind, known))
            }
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

    /// Original training context. Some configs have it at the top level, outside the RoPE settings.
    fn original(&self) -> Result<usize> {
        let above =
            if self.c.is_gguf() { None } else { self.c.find_count(ORIGINAL)?.or(self.defaults.original) };
        match above.or(self.r.find_count(ORIGINAL)?) {
            Some(n) => sane(self.r, ORIGINAL, n),
            None => self.context(),
        }
    }

    /// Ratio of the extended to the original context.
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
            // In GGUF files the factor multiplies the default one.
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
            truncate: r.flag_or(TRUNCATE, !self.c.is_gguf() || self.defaults.gguf_truncate)?,
            attention,
        })
    }

    /// Partial rotary by frequency: a fraction of all frequencies is used, the others are 0.
    fn proportional(&self) -> Result<Scaling> {
        let (factor, pairs) = (self.r.number_or(FACTOR, 1.0)?, self.dim / 2);
        let rotated = (self.r.number_or(PART, 1.0)? * self.dim as f64 / 2.0) as usize;
        if factor <= 0.0 || rotated > pairs {
            let why = format!("rotates {rotated} of {pairs} pairs, by a factor of {factor}");
            return Err(self.r.bad(PART, why));
        }
        Ok(some_of(pairs, rotated, factor))
    }

    fn long(&self) -> Result<Scaling> {
        let original = self.original()?;
        let factor = self.factor(original)?;
        let default = match factor <= 1.0 || original <= 1 {
            true => 1.0,
            false => (1.0 + factor.ln() / (original as f64).ln()).sqrt(),
        };
        let attention = [self.r.find_number(ATTENTION)?.unwrap_or(default); 2];
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
        let want = self.dim.div_ceil(2);
        if list.len() != want || list.iter().any(|x| *x <= 0.0) {
            let why = format!("has {} entries; {want} of more than 0 are expected", list.len());
            return Err(self.r.bad(key, why));
        }
        Ok(list)
    }

    /// Frequency divisors that a GGUF file stores as a tensor.
    fn divisors(&self, name: &str) -> Result<Option<Vec<f64>>> {
        let Some(stored) = self.c.checkpoint().get(name).filter(|_| self.c.is_gguf()) else {
            return Ok(None);
        };
        let mut by = vec![0.0f32; self.dim.div_ceil(2)];
        let fits = stored.shape == [by.len()] && matches!(stored.kind, Kind::Weights(Format::F32));
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
