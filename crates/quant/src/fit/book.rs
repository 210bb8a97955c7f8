//! Fits where several weights together choose an entry of a codebook.

use super::{Unit, finite};
use crate::F16;

/// Candidate positions of a part's largest weight, relative to the codebook's largest value. Far above 1 it is clipped,
/// which is better for most weights where there are few values.
const TRIED: [f32; 16] =
    [0.75, 0.8, 0.85, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.3, 1.45, 1.6, 1.8, 2.0, 2.3, 2.7];

/// A codebook: entries of `M` values each.
pub(crate) struct Book<const M: usize> {
    /// Per position in an entry, the values of all entries.
    columns: [Vec<f32>; M],
    reach: f32,
}

impl<const M: usize> Book<M> {
    /// The entries of a table, each packed as `M` indices into `values` of `bits` bits.
    pub(crate) fn new(table: &[u16], values: &[i8], bits: usize) -> Book<M> {
        let number = |entry: u16, i: usize| {
            values.get(usize::from(entry >> (bits * i)) & ((1 << bits) - 1)).map_or(0.0, |v| f32::from(*v))
        };
        let columns = std::array::from_fn(|i| table.iter().map(|entry| number(*entry, i)).collect());
        let reach = values.iter().fold(0.0, |reach: f32, v| reach.max(f32::from(*v).abs()));
        Book { columns, reach }
    }

    /// The entries of this codebook, followed by those of another.
    pub(crate) fn and(mut self, other: Book<M>) -> Book<M> {
        self.columns.iter_mut().zip(other.columns).for_each(|(all, more)| all.extend(more));
        self
    }

    /// Products of weights with each entry, weighted by `care`.
    fn group(&self, x: &[f32], care: &[f32]) -> Group {
        let entries = self.columns.first().map_or(0, Vec::len);
        let mut group = Group { twice: vec![0.0; entries], squares: vec![0.0; entries] };
        for ((x, care), column) in x.iter().zip(care).zip(&self.columns) {
            let sums = group.twice.iter_mut().zip(&mut group.squares).zip(column);
            sums.for_each(|((twice, squares), v)| {
                *twice += 2.0 * care * x * v;
                *squares += care * v * v;
            });
        }
        group
    }
}

/// A group of weights that choose an entry together.
struct Group {
    /// Twice their dot product with each entry.
    twice: Vec<f32>,
    /// Sum of squares of each entry.
    squares: Vec<f32>,
}

impl Group {
    /// Reduction of the squared error by the best entry times `scale`, against zeros.
    fn gain(&self, scale: f32) -> f32 {
        // Accumulators side by side: one vector.
        let mut best = [f32::NEG_INFINITY; 16];
        for (twice, squares) in self.twice.as_chunks::<16>().0.iter().zip(self.squares.as_chunks::<16>().0) {
            for i in 0..16 {
                let gain = twice[i] - scale * squares[i];
                best[i] = if gain > best[i] { gain } else { best[i] };
            }
        }
        scale * best.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }

    /// The best entry. If the scale is zero, the smallest of equally good ones.
    fn choose(&self, scale: f32) -> u16 {
        let scale = scale.max(f32::MIN_POSITIVE);
        let mut best = (f32::NEG_INFINITY, 0);
        for (i, (twice, square)) in self.twice.iter().zip(&self.squares).enumerate() {
            let gain = twice - scale * square;
            if gain > best.0 {
                best = (gain, i as u16);
            }
        }
        best.1
    }
}

/// Magnitudes of weights whose signs are stored apart, and a byte of sign bits for every 8.
pub(crate) struct Signed;

impl Signed {
    /// The magnitudes and sign bits of weights, where any combination of signs can be stored.
    pub(crate) fn free(weights: &[f32; 256], care: &[f32; 256]) -> (Unit<256>, [u8; 32]) {
        let mut unit = Unit::new(&finite(weights), care);
        let mut signs = [0; 32];
        for (x, signs) in unit.x.as_chunks_mut::<8>().0.iter_mut().zip(&mut signs) {
            for (i, x) in x.iter_mut().enumerate() {
                *signs |= u8::from(*x < 0.0) << i;
                *x = x.abs();
            }
        }
        (unit, signs)
    }

    /// An even number of negative signs in every 8: where it is odd, the weight that matters least gets the wrong sign,
    /// and a negative magnitude.
    pub(crate) fn even(weights: &[f32; 256], care: &[f32; 256]) -> (Unit<256>, [u8; 32]) {
        let (mut unit, mut signs) = Signed::free(weights, care);
        let eights = unit.x.as_chunks_mut::<8>().0.iter_mut().zip(unit.care.as_chunks::<8>().0);
        for ((x, care), signs) in eights.zip(&mut signs) {
            let smallest =
                (0..8).fold(0, |least, i| if care[i] * x[i] < care[least] * x[least] { i } else { least });
            if signs.count_ones() % 2 == 1 {
                *signs ^= 1 << smallest;
                x[smallest] = -x[smallest];
            }
        }
        (unit, signs)
    }
}

/// Codebook entries for 256 weights, in parts whose scales are odd multiples of one number.
pub(crate) struct BookFit {
    pub(crate) d: F16,
    /// The odd multiple of each part.
    pub(crate) factors: [u8; 16],
    /// The codebook of each part.
    pub(crate) books: [u8; 16],
    pub(crate) entries: [u16; 64],
}

impl BookFit {
    /// The factors as scales of four bits (`factor / 2`), low half first.
    pub(crate) fn nibbles<const N: usize>(&self) -> [u8; N] {
        let scale = |i: usize| self.factors[i] / 2;
        std::array::from_fn(|i| scale(2 * i) | scale(2 * i + 1) << 4)
    }
}

/// Weights that share a scale, and their products with each entry of each codebook.
struct ScaleGroup<'a, const M: usize> {
    books: &'a [Book<M>],
    /// Groups of weights of each codebook.
    groups: Vec<Vec<Group>>,
}

impl<'a, const M: usize> ScaleGroup<'a, M> {
    fn new(books: &'a [Book<M>], x: &[f32], care: &[f32]) -> ScaleGroup<'a, M> {
        let of = |book: &Book<M>| {
            x.chunks_exact(M).zip(care.chunks_exact(M)).map(|(x, care)| book.group(x, care)).collect()
        };
        ScaleGroup { books, groups: books.iter().map(of).collect() }
    }

    /// The largest gain of any codebook with that scale, and which codebook it is.
    fn gain(&self, scale: f32) -> (f32, u8) {
        let mut best = (f32::NEG_INFINITY, 0);
        for (i, groups) in self.groups.iter().enumerate() {
            let gain = groups.iter().map(|group| group.gain(scale)).sum::<f32>();
            if gain > best.0 {
                best = (gain, i as u8);
            }
        }
        best
    }

    /// The candidate scale with the largest gain.
    fn ideal(&self, x: &[f32]) -> f32 {
        let largest = x.iter().fold(0.0, |largest: f32, x| largest.max(x.abs()));
        let reach = self.books.iter().fold(0.0, |reach: f32, book| reach.max(book.reach));
        let mut best = (0.0, 0.0);
        for tried in TRIED {
            let scale = largest / (reach * tried);
            let (gain, _) = self.gain(scale);
            if gain > best.0 {
                best = (gain, scale);
            }
        }
        best.1
    }
}

/// Fits parts of `groups` groups of `M` weights each. Scales are odd multiples, up to `top`, of `d / of`.
pub(crate) fn fit_books<const M: usize>(
    unit: &Unit<256>,
    books: &[Book<M>],
    groups: usize,
    top: u8,
    of: f32,
) -> BookFit {
    let each = unit.x.chunks_exact(groups * M).zip(unit.care.chunks_exact(groups * M));
    let parts: Vec<ScaleGroup<'_, M>> = each.map(|(x, care)| ScaleGroup::new(books, x, care)).collect();
    let ideal: Vec<f32> =
        parts.iter().zip(unit.x.chunks_exact(groups * M)).map(|(part, x)| part.ideal(x)).collect();
    let largest = ideal.iter().fold(0.0, |largest: f32, s| largest.max(*s));
    let mut fit = BookFit { d: F16([0; 2]), factors: [1; 16], books: [0; 16], entries: [0; 64] };
    let mut most = f32::NEG_INFINITY;
    for most_of in [0.0, 0.5, 1.0, 2.0, 4.0] {
        let step = largest / (f32::from(top) - most_of);
        let d = f64::from(step * of) * f64::from(unit.size);
        let d = F16::nearest(d.min(65504.0) as f32);
        let step = unit.step(d.get()).0 / of;
        let (mut gain, mut factors, mut of_parts) = (0.0, [1; 16], [0; 16]);
        for (i, part) in parts.iter().enumerate() {
            let best = factor(part, ideal[i], step, top);
            gain += best.0;
            (factors[i], of_parts[i]) = (best.1, best.2);
        }
        if gain > most {
            most = gain;
            (fit.d, fit.factors, fit.books) = (d, factors, of_parts);
        }
    }
    let step = unit.step(fit.d.get()).0 / of;
    for (i, part) in parts.iter().enumerate() {
        let book = usize::from(fit.books[i]);
        for (j, group) in part.groups[book].iter().enumerate() {
            fit.entries[i * groups + j] = group.choose(step * f32::from(fit.factors[i]));
        }
    }
    fit
}

/// The odd factor of `step` near the ideal scale with the largest gain: the gain, the factor, and the codebook.
fn factor<const M: usize>(part: &ScaleGroup<'_, M>, ideal: f32, step: f32, top: u8) -> (f32, u8, u8) {
    let near = if step == 0.0 { 0.0 } else { (ideal / step / 2.0).min(255.0) } as u8;
    let mut best = (f32::NEG_INFINITY, 1, 0);
    for half in near.saturating_sub(1)..=near + 1 {
        let factor = (2 * u16::from(half) + 1).min(u16::from(top)) as u8;
        let (gain, book) = part.gain(step * f32::from(factor));
        if gain > best.0 {
            best = (gain, factor, book);
        }
    }
    best
}
