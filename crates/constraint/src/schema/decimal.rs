//! [`Decimal`]: an exact decimal number, as schemas write bounds and constants.

use std::cmp::Ordering;

/// Limits of what is computed with: products of two such numbers fit into 128 bits.
const MOST_DIGITS: i128 = 100_000_000_000_000_000_000;
const MOST_SCALE: u32 = 17;
/// Maximum coefficient of a step: an automaton has a state for each remainder.
const MOST_REMAINDERS: u32 = 10_000;

/// A decimal number: `digits` * 10^-`scale`, without trailing zeros behind the point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Decimal {
    digits: i128,
    scale: u32,
}

impl Decimal {
    pub(super) const ZERO: Decimal = Decimal { digits: 0, scale: 0 };
    pub(super) const ONE: Decimal = Decimal { digits: 1, scale: 0 };

    fn new(mut digits: i128, mut scale: u32) -> Option<Decimal> {
        while scale > 0 && digits % 10 == 0 {
            digits /= 10;
            scale -= 1;
        }
        (digits.abs() <= MOST_DIGITS && scale <= MOST_SCALE).then_some(Decimal { digits, scale })
    }

    /// A JSON number. `None` if it is larger or finer than what is computed with.
    pub(super) fn read(number: &serde_json::Number) -> Option<Decimal> {
        let text = number.to_string();
        let (mantissa, exponent) = match text.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
            None => (text.as_str(), 0),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let mut digits = format!("{whole}{fraction}").parse::<i128>().ok()?;
        let mut scale = fraction.len() as i32 - exponent;
        while scale > 0 && digits % 10 == 0 {
            digits /= 10;
            scale -= 1;
        }
        while scale < 0 {
            digits = digits.checked_mul(10).filter(|d| d.abs() <= MOST_DIGITS)?;
            scale += 1;
        }
        Decimal::new(digits, u32::try_from(scale).ok()?)
    }

    fn aligned(self, other: Decimal) -> (i128, i128, u32) {
        let scale = self.scale.max(other.scale);
        let at = |d: Decimal| d.digits * 10i128.pow(scale - d.scale);
        (at(self), at(other), scale)
    }

    pub(super) fn is_negative(self) -> bool {
        self.digits < 0
    }

    pub(super) fn is_integer(self) -> bool {
        self.scale == 0
    }

    pub(super) fn abs(self) -> Decimal {
        Decimal { digits: self.digits.abs(), ..self }
    }

    /// The next integer above, or itself.
    pub(super) fn ceil(self) -> Decimal {
        let unit = 10i128.pow(self.scale);
        let up = i128::from(self.digits.rem_euclid(unit) != 0);
        Decimal { digits: self.digits.div_euclid(unit) + up, scale: 0 }
    }

    /// The next integer below, or itself.
    pub(super) fn floor(self) -> Decimal {
        Decimal { digits: self.digits.div_euclid(10i128.pow(self.scale)), scale: 0 }
    }

    /// An integer plus `n`.
    pub(super) fn plus(self, n: i128) -> Decimal {
        Decimal { digits: self.digits + n * 10i128.pow(self.scale), scale: self.scale }
    }

    pub(super) fn is_multiple_of(self, step: Decimal) -> bool {
        let (a, b, _) = self.aligned(step);
        b != 0 && a % b == 0
    }

    /// The least number that is a multiple of both.
    pub(super) fn common_multiple(self, other: Decimal) -> Option<Decimal> {
        let (a, b, scale) = self.aligned(other);
        let (mut x, mut y) = (a.abs(), b.abs());
        while y != 0 {
            (x, y) = (y, x % y);
        }
        Decimal::new((a / x.max(1)).checked_mul(b)?.abs(), scale)
    }

    /// True if a multiple of `self` lies between the bounds, each of which is true if it is excluded.
    pub(super) fn has_multiple_between(self, low: (Decimal, bool), high: (Decimal, bool)) -> bool {
        let scale = self.scale.max(low.0.scale).max(high.0.scale);
        let at = |d: Decimal| d.digits * 10i128.pow(scale - d.scale);
        let (step, least, most) = (at(self), at(low.0), at(high.0));
        let mut first = -(-least).div_euclid(step) * step;
        if low.1 && first == least {
            first += step;
        }
        first < most || (first == most && !high.1)
    }

    /// An integer without the zeros at its end, and their number.
    pub(super) fn without_zeros(mut self) -> (Decimal, usize) {
        let mut zeros = 0;
        while self.scale == 0 && self.digits != 0 && self.digits % 10 == 0 {
            self.digits /= 10;
            zeros += 1;
        }
        (self, zeros)
    }

    /// The coefficient and the scale, if an automaton that counts remainders is small enough.
    pub(super) fn small(self) -> Option<(u32, u32)> {
        let coefficient = u32::try_from(self.digits).ok()?;
        (coefficient <= MOST_REMAINDERS && self.scale <= 9).then_some((coefficient, self.scale))
    }

    /// The digits before and behind the point, of a number that is not negative.
    pub(super) fn parts(self) -> (String, String) {
        let digits = format!("{:0>1$}", self.digits.abs(), self.scale as usize + 1);
        let (whole, fraction) = digits.split_at(digits.len() - self.scale as usize);
        (whole.into(), fraction.into())
    }
}

impl std::fmt::Display for Decimal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (whole, fraction) = self.parts();
        let sign = if self.digits < 0 { "-" } else { "" };
        match fraction.as_str() {
            "" => write!(f, "{sign}{whole}"),
            fraction => write!(f, "{sign}{whole}.{fraction}"),
        }
    }
}

impl Ord for Decimal {
    fn cmp(&self, other: &Decimal) -> Ordering {
        let (a, b, _) = self.aligned(*other);
        a.cmp(&b)
    }
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Decimal) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
