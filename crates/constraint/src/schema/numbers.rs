//! [`Numbers`]: a set of JSON numbers, and the expression of their texts.

use llguidance::derivre::RegexAst;

use super::decimal::Decimal;

/// Integers without a sign. Endless digits are no number that a program can read.
const INTEGER: &str = "(0|[1-9][0-9]{0,99})";
/// Digits that may follow them: as many digits as a double has.
const FRACTION: &str = r"(\.[0-9]{1,15})?";

/// A bound, and true if the bound itself is excluded.
pub(super) type Bound = Option<(Decimal, bool)>;

/// A set of numbers.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Numbers {
    pub(super) integer: bool,
    /// No integers, even where a program reads a double.
    pub(super) fraction: bool,
    pub(super) low: Bound,
    pub(super) high: Bound,
    pub(super) multiple_of: Option<Decimal>,
    /// These alone.
    pub(super) among: Option<Vec<Decimal>>,
    /// All but these.
    pub(super) without: Vec<Decimal>,
}

impl Numbers {
    /// The numbers that are in both. An error is the step that is too fine or too large to be computed with.
    pub(super) fn meet(&self, other: &Numbers) -> Result<Option<Numbers>, String> {
        let tighter = |a: Bound, b: Bound, low: bool| match (a, b) {
            (Some(a), Some(b)) if a.0 == b.0 => Some((a.0, a.1 || b.1)),
            (Some(a), Some(b)) => Some(if (a.0 > b.0) == low { a } else { b }),
            (a, b) => a.or(b),
        };
        let multiple_of = match (self.multiple_of, other.multiple_of) {
            (Some(a), Some(b)) => Some(
                a.common_multiple(b)
                    .ok_or_else(|| format!("the common multiple of {a} and {b} is too large"))?,
            ),
            (a, b) => a.or(b),
        };
        let mut met = Numbers {
            integer: self.integer || other.integer,
            fraction: self.fraction || other.fraction,
            low: tighter(self.low, other.low, true),
            high: tighter(self.high, other.high, false),
            multiple_of,
            among: None,
            without: self.without.iter().chain(&other.without).copied().collect(),
        };
        let among = match (&self.among, &other.among) {
            (Some(a), Some(b)) => Some(a.iter().filter(|n| b.contains(n)).copied().collect()),
            (a, b) => a.as_ref().or(b.as_ref()).cloned(),
        };
        if let Some(among) = among {
            let among: Vec<Decimal> = among.into_iter().filter(|n| met.has(*n)).collect();
            if among.is_empty() {
                return Ok(None);
            }
            met = Numbers { among: Some(among), ..Numbers::default() };
        }
        Ok((!met.is_empty()?).then_some(met))
    }

    /// True if the number is in the set.
    pub(super) fn has(&self, n: Decimal) -> bool {
        let above = self.low.is_none_or(|(low, excluded)| if excluded { n > low } else { n >= low });
        let below = self.high.is_none_or(|(high, excluded)| if excluded { n < high } else { n <= high });
        above
            && below
            && (!self.integer || n.is_integer())
            && (!self.fraction || !n.is_integer())
            && self.multiple_of.is_none_or(|step| n.is_multiple_of(step))
            && self.among.as_ref().is_none_or(|among| among.contains(&n))
            && !self.without.contains(&n)
    }

    /// The distance of all members, if there is one.
    fn step(&self) -> Result<Option<Decimal>, String> {
        match (self.multiple_of, self.integer) {
            (Some(step), true) => {
                step.common_multiple(Decimal::ONE).map(Some).ok_or_else(|| format!("{step} is too fine"))
            }
            (Some(step), false) => Ok(Some(step)),
            (None, integer) => Ok(integer.then_some(Decimal::ONE)),
        }
    }

    pub(super) fn is_empty(&self) -> Result<bool, String> {
        if let Some(among) = &self.among {
            return Ok(among.is_empty());
        }
        if self.integer && self.fraction {
            return Ok(true);
        }
        let (Some((low, low_excluded)), Some((high, high_excluded))) = (self.low, self.high) else {
            return Ok(false);
        };
        if low > high || (low == high && (low_excluded || high_excluded)) {
            return Ok(true);
        }
        let only = low == high && (self.without.contains(&low) || (self.fraction && low.is_integer()));
        let Some(step) = self.step()? else { return Ok(only) };
        if step == Decimal::ONE {
            let (low, high) = self.integers();
            return Ok(low > high);
        }
        Ok(!step.has_multiple_between((low, low_excluded), (high, high_excluded)))
    }

    /// The least and the largest integer.
    fn integers(&self) -> (Option<Decimal>, Option<Decimal>) {
        let low = self.low.map(
            |(low, excluded)| {
                if excluded && low.is_integer() { low.plus(1) } else { low.ceil() }
            },
        );
        let high = self.high.map(
            |(high, excluded)| {
                if excluded && high.is_integer() { high.plus(-1) } else { high.floor() }
            },
        );
        (low, high)
    }

    /// True if no number is in both, as far as it can be seen.
    pub(super) fn is_disjoint(&self, other: &Numbers) -> bool {
        matches!(self.meet(other), Ok(None))
    }

    /// The expression of the texts of these numbers, one text a value except for zeros behind the point.
    pub(super) fn ast(&self) -> Result<RegexAst, String> {
        if let Some(among) = &self.among {
            return Ok(RegexAst::Or(among.iter().map(|n| RegexAst::Literal(n.to_string())).collect()));
        }
        let unbounded = self.low.is_none() && self.high.is_none() && self.multiple_of.is_none();
        let mut all = if unbounded {
            let rest =
                if self.integer { String::new() } else { format!("{FRACTION}([eE][+-]?[0-9]{{1,2}})?") };
            RegexAst::Regex(format!("-?{INTEGER}{rest}"))
        } else {
            RegexAst::Or(self.signed()?)
        };
        if self.fraction {
            all = RegexAst::And(vec![all, RegexAst::Regex(r"-?[0-9]{1,8}\.[0-9]{0,6}[1-9]".into())]);
        }
        if !self.without.is_empty() {
            // Without bounds `1e0` is 1, too: numbers that must not be written have only their plain text.
            let not = self.without.iter().map(|n| {
                let zeros = if n.is_integer() { r"(\.0+)?" } else { "0*" };
                let exponent = if unbounded { r"([eE].*)?" } else { "" };
                let minus = if *n == Decimal::ZERO { "-?" } else { "" };
                RegexAst::Regex(format!("{minus}{}{zeros}{exponent}", n.to_string().replace('.', r"\.")))
            });
            let not = RegexAst::Not(Box::new(RegexAst::Or(not.collect())));
            let plain = RegexAst::Regex("[-0-9.]+".into());
            all = RegexAst::And(vec![all, plain, not]);
        }
        Ok(all)
    }

    /// The numbers without a sign, and those with one.
    fn signed(&self) -> Result<Vec<RegexAst>, String> {
        let (low, high) = if self.integer {
            let (low, high) = self.integers();
            (low.map(|n| (n, false)), high.map(|n| (n, false)))
        } else {
            (self.low, self.high)
        };
        let mut parts = Vec::new();
        let reaches_zero =
            high.is_none_or(|(high, excluded)| !high.is_negative() && (!excluded || high != Decimal::ZERO));
        if reaches_zero {
            let low = low.filter(|(low, _)| !low.is_negative());
            parts.push(self.magnitudes(low, high)?);
        }
        if low.is_none_or(|(low, _)| low.is_negative()) {
            // -m is at most `high`: m is at least -`high`.
            let least = high.filter(|(high, _)| high.is_negative() || *high == Decimal::ZERO);
            let (least, most) = (least.map(|(n, e)| (n.abs(), e)), low.map(|(n, e)| (n.abs(), e)));
            let magnitudes = self.magnitudes(least, most)?;
            parts.push(RegexAst::Concat(vec![RegexAst::Literal("-".into()), magnitudes]));
        }
        Ok(parts)
    }

    /// The texts of numbers without a sign between the bounds.
    fn magnitudes(&self, low: Bound, high: Bound) -> Result<RegexAst, String> {
        let mut all = Vec::new();
        let fraction = if self.integer { "" } else { FRACTION };
        if let Some((low, excluded)) = low {
            all.push(RegexAst::Regex(at_least(low, excluded, fraction)));
        }
        if let Some((high, excluded)) = high {
            all.push(RegexAst::Regex(at_most(high, excluded, fraction)));
        }
        if let Some(step) = self.step()?.filter(|step| *step != Decimal::ONE) {
            let (step, zeros) = step.without_zeros();
            let (coefficient, scale) =
                step.small().ok_or_else(|| format!("{step} has too many digits to be enforced"))?;
            let multiple = RegexAst::MultipleOf(coefficient, scale);
            all.push(match zeros {
                0 => multiple,
                _ => RegexAst::Or(vec![
                    RegexAst::Literal("0".into()),
                    RegexAst::Concat(vec![multiple, RegexAst::Literal("0".repeat(zeros))]),
                ]),
            });
            all.push(RegexAst::Regex(format!("{INTEGER}{fraction}")));
        }
        Ok(match all.len() {
            0 => RegexAst::Regex(format!("{INTEGER}{fraction}")),
            1 => all.remove(0),
            _ => RegexAst::And(all),
        })
    }
}

/// The texts of numbers that are at least `low`, or above it.
fn at_least(low: Decimal, excluded: bool, fraction: &str) -> String {
    let (whole, behind) = low.parts();
    let mut options = vec![format!("{}{fraction}", above(&whole))];
    match (fraction.is_empty(), behind.as_str()) {
        (true, _) => options.push(whole),
        (false, "") if excluded => options.push(format!(r"{whole}\.[0-9]{{0,14}}[1-9]")),
        (false, "") => options.push(format!("{whole}{fraction}")),
        (false, behind) => options.push(format!(r"{whole}\.{}", digits_above(behind, excluded))),
    }
    options.join("|")
}

/// The texts of numbers that are at most `high`, or below it.
fn at_most(high: Decimal, excluded: bool, fraction: &str) -> String {
    let (whole, behind) = high.parts();
    let mut options = Vec::new();
    options.extend(below(&whole).map(|b| format!("({b}){fraction}")));
    match (fraction.is_empty(), behind.as_str()) {
        (true, _) => options.push(whole),
        (false, "") if excluded => {}
        (false, "") => options.push(format!(r"{whole}(\.0+)?")),
        (false, behind) => options.push(format!(r"{whole}(\.({}))?", digits_below(behind, excluded))),
    }
    options.join("|")
}

/// Integers above one.
fn above(whole: &str) -> String {
    let digits = whole.as_bytes();
    let mut options = match whole {
        "0" => vec!["[1-9][0-9]{0,99}".to_owned()],
        _ => vec![format!("[1-9][0-9]{{{},99}}", digits.len())],
    };
    if whole != "0" {
        for (i, digit) in digits.iter().enumerate().filter(|(_, d)| **d < b'9') {
            let rest = digits.len() - i - 1;
            options.push(format!("{}[{}-9][0-9]{{{rest}}}", &whole[..i], char::from(digit + 1)));
        }
    }
    format!("({})", options.join("|"))
}

/// Integers below one, if there are any.
fn below(whole: &str) -> Option<String> {
    let digits = whole.as_bytes();
    let mut options = Vec::new();
    if digits.len() > 1 {
        options.push(format!("0|[1-9][0-9]{{0,{}}}", digits.len() - 2));
    }
    for (i, digit) in digits.iter().enumerate() {
        let least = if i == 0 && digits.len() > 1 { b'1' } else { b'0' };
        if *digit > least {
            let (rest, most) = (digits.len() - i - 1, char::from(digit - 1));
            options.push(format!("{}[{}-{most}][0-9]{{{rest}}}", &whole[..i], char::from(least)));
        }
    }
    (!options.is_empty()).then(|| options.join("|"))
}

/// Digits behind the point that are at least these, or above them. The last of these is not 0.
fn digits_above(behind: &str, excluded: bool) -> String {
    let mut tail = if excluded { "[0-9]{0,14}[1-9]" } else { "[0-9]{0,15}" }.to_owned();
    for digit in behind.bytes().rev() {
        let higher = match digit {
            b'9' => String::new(),
            _ => format!("|[{}-9][0-9]{{0,15}}", char::from(digit + 1)),
        };
        tail = format!("({}{tail}{higher})", char::from(digit));
    }
    tail
}

/// Digits behind the point that are at most these, or below them. The last of these is not 0.
fn digits_below(behind: &str, excluded: bool) -> String {
    let mut tail: Option<String> = (!excluded).then(|| "0*".to_owned());
    for (i, digit) in behind.bytes().enumerate().rev() {
        let last = i + 1 == behind.len();
        let mut options = Vec::new();
        if digit > b'0' {
            options.push(format!("[0-{}][0-9]{{0,15}}", char::from(digit - 1)));
        }
        match tail {
            Some(tail) if last => options.push(format!("{}{tail}", char::from(digit))),
            // Digits that end before these do are below them.
            Some(tail) => options.push(format!("{}({tail})?", char::from(digit))),
            None if !last => options.push(char::from(digit).to_string()),
            None => {}
        }
        tail = (!options.is_empty()).then(|| format!("({})", options.join("|")));
    }
    tail.unwrap_or_default()
}
