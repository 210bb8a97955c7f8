//! Fits where several weights together choose an entry of a book.

use super::{Ints, Unit, finite};
use crate::F16;

/// Of how large the largest weight of a part is tried to be, relative to the largest number of the book. Far below one most
/// weights are the better for it where numbers are few.
const TRIED: [f32; 16] =
    [0.75, 0.8, 0.85, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.3, 1.45, 1.6, 1.8, 2.0, 2.3, 2.7];

/// Entries of `M` numbers each.
pub(crate) struct Book<const M: usize> {
    /// Of each number, that of all entries.
    columns: [Vec<f32>; M],
    /// Of each entry, the sum of squares.
    squares: Vec<f32>,
    reach: f32,
}

impl<const M: usize> Book<M> {
    /// The entries of a table, which number their values in so many bits each.
    pub(crate) fn new(table: &[u16], values: &[i8], bits: usize) -> Book<M> {
        let number = |entry: u16, i: usize| {
            values.get(usize::from(entry >> (bits * i)) & ((1 << bits) - 1)).map_or(0.0, |v| f32::from(*v))
        };
        let columns = std::array::from_fn(|i| table.iter().map(|entry| number(*entry, i)).collect());
        let square = |entry: &u16| (0..M).map(|i| number(*entry, i)).map(|x| x * x).sum();
        let reach = values.iter().fold(0.0, |reach: f32, v| reach.max(f32::from(*v).abs()));
        Book { columns, squares: table.iter().map(square).collect(), reach }
    }

    /// All entries of this, and then those of another.
    pub(crate) fn and(mut self, other: Book<M>) -> Book<M> {
        self.columns.iter_mut().zip(other.columns).for_each(|(all, more)| all.extend(more));
        self.squares.extend(other.squares);
        self
    }

    /// Twice the products of weights with each entry.
    fn twice(&self, x: &[f32]) -> Vec<f32> {
        let mut twice = vec![0.0; self.squares.len()];
        for (x, column) in x.iter().zip(&self.columns) {
            twice.iter_mut().zip(column).for_each(|(all, v)| *all += 2.0 * x * v);
        }
        twice
    }

    /// By how much the best entry times `scale` makes the squared error less than zeros do.
    fn gain(&self, twice: &[f32], scale: f32) -> f32 {
        // Side by side: one vector.
        let mut best = [f32::NEG_INFINITY; 16];
        for (twice, squares) in twice.as_chunks::<16>().0.iter().zip(self.squares.as_chunks::<16>().0) {
            for i in 0..16 {
                let gain = twice[i] - scale * squares[i];
                best[i] = if gain > best[i] { gain } else { best[i] };
            }
        }
        scale * best.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }

    /// The best entry. Where the scale is zero, the smallest of the best.
    fn choose(&self, twice: &[f32], scale: f32) -> u16 {
        let scale = scale.max(f32::MIN_POSITIVE);
        let mut best = (f32::NEG_INFINITY, 0);
        for (i, (twice, square)) in twice.iter().zip(&self.squares).enumerate() {
            let gain = twice - scale * square;
            if gain > best.0 {
                best = (gain, i as u16);
            }
        }
        best.1
    }
}

/// Makes magnitudes of weights whose signs are stored apart, and the signs of eights.
pub(crate) struct Signed;

impl Signed {
    /// Any signs.
    pub(crate) fn free(weights: &[f32; 256]) -> (Unit<256>, [u8; 32]) {
        let mut unit = Unit::new(&finite(weights), &[1.0; 256]);
        let mut signs = [0; 32];
        for (x, signs) in unit.x.as_chunks_mut::<8>().0.iter_mut().zip(&mut signs) {
            for (i, x) in x.iter_mut().enumerate() {
                *signs |= u8::from(*x < 0.0) << i;
                *x = x.abs();
            }
        }
        (unit, signs)
    }

    /// An even number of eight signs: where it is odd, the smallest weight has the wrong one, and a negative magnitude.
    pub(crate) fn even(weights: &[f32; 256]) -> (Unit<256>, [u8; 32]) {
        let (mut unit, mut signs) = Signed::free(weights);
        for (x, signs) in unit.x.as_chunks_mut::<8>().0.iter_mut().zip(&mut signs) {
            let smallest = (0..8).fold(0, |least, i| if x[i] < x[least] { i } else { least });
            if signs.count_ones() % 2 == 1 {
                *signs ^= 1 << smallest;
                x[smallest] = -x[smallest];
            }
        }
        (unit, signs)
    }
}

/// Entries for 256 weights, some of which share a scale that is an odd multiple of one number.
pub(crate) struct BookFit {
    pub(crate) d: F16,
    /// Of each part.
    pub(crate) factors: [u8; 16],
    /// The book of each part.
    pub(crate) books: [u8; 16],
    pub(crate) entries: [u16; 64],
}

impl BookFit {
    /// The factors as scales of four bits, low half first.
    pub(crate) fn nibbles<const N: usize>(&self) -> [u8; N] {
        let scale = |i: usize| self.factors[i] / 2;
        std::array::from_fn(|i| scale(2 * i) | scale(2 * i + 1) << 4)
    }
}

/// Weights that share a scale, and what they come to with each entry of each book.
struct Part<'a, const M: usize> {
    books: &'a [Book<M>],
    /// Of each book, for each group of weights.
    twice: Vec<Vec<Vec<f32>>>,
}

impl<'a, const M: usize> Part<'a, M> {
    fn new(books: &'a [Book<M>], x: &[f32]) -> Part<'a, M> {
        let of = |book: &Book<M>| x.chunks_exact(M).map(|group| book.twice(group)).collect();
        Part { books, twice: books.iter().map(of).collect() }
    }

    /// The most that a book gains with that scale, and which.
    fn gain(&self, scale: f32) -> (f32, u8) {
        let mut best = (f32::NEG_INFINITY, 0);
        for (i, (book, twice)) in self.books.iter().zip(&self.twice).enumerate() {
            let gain = twice.iter().map(|group| book.gain(group, scale)).sum::<f32>();
            if gain > best.0 {
                best = (gain, i as u8);
            }
        }
        best
    }

    /// The scale that gains most of those tried.
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

/// Fits parts of `groups` groups of `M` weights each. Scales are odd multiples, up to `top`, of one `of`-th of a number.
pub(crate) fn fit_books<const M: usize>(
    unit: &Unit<256>,
    books: &[Book<M>],
    groups: usize,
    top: u8,
    of: f32,
) -> BookFit {
    let parts: Vec<Part<'_, M>> = unit.x.chunks_exact(groups * M).map(|x| Part::new(books, x)).collect();
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
        for (j, twice) in part.twice[book].iter().enumerate() {
            fit.entries[i * groups + j] = books[book].choose(twice, step * f32::from(fit.factors[i]));
        }
    }
    fit
}

/// The odd factor of `step` near to the ideal scale that gains most: how much, the factor, and the book.
fn factor<const M: usize>(part: &Part<'_, M>, ideal: f32, step: f32, top: u8) -> (f32, u8, u8) {
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

/// A scale for -1, 0 and 1, and which of them each weight is, from zero on.
pub(crate) fn fit_ternary(weights: &[f32; 256], care: &[f32; 256]) -> (F16, [u8; 256]) {
    let unit = Unit::new(weights, care);
    let mut sizes: [(f32, f32); 256] = std::array::from_fn(|i| (unit.x[i].abs(), unit.care[i]));
    sizes.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    // With the largest few as ones, the best scale is their mean.
    let (mut sum, mut count, mut best) = (0.0, 0.0, (0.0, 0.0));
    for (size, care) in sizes {
        sum += care * size;
        count += care;
        if sum * sum / count > best.0 {
            best = (sum * sum / count, sum / count);
        }
    }
    let scale = (f64::from(best.1) * f64::from(unit.size)) as f32;
    let errors = F16::around(scale).map(|d| (unit.error(d.get(), &Ints::<-1, 1>), d));
    let [below, above] = errors;
    let (_, d) = if above.0 < below.0 { above } else { below };
    (d, unit.codes(d.get(), &Ints::<-1, 1>))
}
