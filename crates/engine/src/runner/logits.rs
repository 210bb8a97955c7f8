//! [`LogitsPlan`]: which logits a step reads. It is made and uploaded before the forward pass, and all that it reads is
//! read in one transfer.

use std::ops::Range;

use bytemuck::cast_slice_mut;
use tallow_core::ops::{IndexMode, IndexRows, TailSum, TopK, TopKOut};
use tallow_core::{Backend, Error, Tensor};

use super::SampleInput;
use crate::sampler::{Candidates, LogitsNeeded, Tail, candidates_of};
use crate::scheduler::{Batch, BatchPart, LogitsRows};

/// Logits that a part reads.
#[derive(Debug)]
pub(super) struct PartLogits {
    /// Rows that are scored, read in full.
    scored: Range<usize>,
    /// Rows to sample from.
    pub(super) sampled: Range<usize>,
    pub(super) needs: LogitsNeeded,
    /// Tokens whose logits the sampler edits, if it samples from candidates: one gather for each row.
    edited: Vec<u32>,
    /// Index of the first row's logits in the step's.
    edited_at: usize,
    /// Temperature of the sampler.
    temperature: f32,
}

/// Rows of logits that a step reads, and in which form.
#[derive(Debug)]
pub(super) struct LogitsPlan {
    pub(super) parts: Vec<PartLogits>,
    vocab: usize,
    top_k: TopRows,
    candidates: TopRows,
    /// True if log-probabilities of candidates are wanted.
    logprobs: bool,
}

/// Consecutive rows whose top k are computed.
#[derive(Clone, Debug, Default)]
struct TopRows {
    rows: Range<usize>,
    k: usize,
}

/// Tensors that a plan uploads.
#[derive(Debug)]
pub(super) struct Uploaded<B: Backend> {
    /// [rows, 1 or 2]: of each row of candidates, the temperature and 1
    temperatures: Option<Tensor<B>>,
    /// [1, edited logits]: their places in the rows of candidates
    edited: Option<Tensor<B>>,
}

/// Logits that a step reads: device tensors, not yet fetched.
#[derive(Debug)]
pub(super) struct LaunchedLogits<B: Backend> {
    whole: Vec<Tensor<B>>,
    top_k: Option<TopKOut<B>>,
    candidates: Option<(TopKOut<B>, Tensor<B>)>,
    edited: Option<Tensor<B>>,
}

/// Logits that a step reads, on their way to the host.
#[derive(Debug)]
pub(super) struct FetchedLogits<B: Backend> {
    launched: LaunchedLogits<B>,
    /// `None` if nothing is read.
    pending: Option<B::Pending>,
}

/// Logits that a step has read, on the host.
#[derive(Debug, Default)]
pub(super) struct LogitsRead {
    /// Full rows, in order.
    pub(super) whole: Vec<f32>,
    top_k: TopKRead,
    candidates: TopKRead,
    tails: Vec<f32>,
    edited: Vec<f32>,
}

/// Top-k tokens of some rows and their logits.
#[derive(Debug, Default)]
struct TopKRead {
    tokens: Vec<u32>,
    logits: Vec<f32>,
}

impl LogitsPlan {
    pub(super) fn new(batch: &Batch, asked: &[SampleInput<'_>], vocab: usize) -> LogitsPlan {
        let mut plan = LogitsPlan {
            parts: Vec::new(),
            vocab,
            top_k: TopRows::default(),
            candidates: TopRows { k: candidates_of(vocab), ..TopRows::default() },
            logprobs: false,
        };
        let (mut end, mut edited_at) = (0, 0);
        for (of, asked) in batch.parts.iter().zip(asked) {
            let start = end;
            end += outputs(of);
            let sampled = match of.logits.samples() {
                true => end.saturating_sub(1 + of.drafted)..end,
                false => end..end,
            };
            let (sampler, how) = (asked.sampler, asked.sampler.how());
            let mut part = PartLogits {
                scored: start..start + scored(of, asked).len(),
                sampled,
                needs: sampler.needs(vocab),
                edited: Vec::new(),
                edited_at,
                temperature: if how.temperature > 0.0 { how.temperature } else { 1.0 },
            };
            if part.needs == LogitsNeeded::Candidates && !part.sampled.is_empty() {
                part.edited = sampler.edited(draft(of).1, vocab);
                // Many of them are read no faster than the row, and their places are 32 bits.
                if part.edited.len() > vocab / 8 || end.saturating_mul(vocab) > u32::MAX as usize {
                    (part.needs, part.edited) = (LogitsNeeded::Row, Vec::new());
                }
            }
            if !part.sampled.is_empty() {
                plan.include(&part, how.logprobs.is_some());
            }
            edited_at += part.sampled.len() * part.edited.len();
            plan.parts.push(part);
        }
        plan
    }

    /// True if each part takes the likeliest token after it, and nothing else is read.
    pub(super) fn is_greedy(&self) -> bool {
        let takes_one = |part: &PartLogits| {
            part.needs == LogitsNeeded::TopK(1) && part.sampled.len() == 1 && part.scored.is_empty()
        };
        self.top_k.k == 1 && self.parts.iter().all(takes_one)
    }

    /// Extends the rows whose top k are computed by those of a part.
    fn include(&mut self, part: &PartLogits, logprobs: bool) {
        let top = match part.needs {
            LogitsNeeded::Row => return,
            LogitsNeeded::TopK(k) => {
                self.top_k.k = self.top_k.k.max(k);
                &mut self.top_k
            }
            LogitsNeeded::Candidates => {
                self.logprobs |= logprobs;
                &mut self.candidates
            }
        };
        let start = if top.rows.is_empty() { part.sampled.start } else { top.rows.start };
        top.rows = start..part.sampled.end;
    }

    /// Uploads the plan.
    pub(super) fn upload<B: Backend>(&self, b: &B) -> Result<Uploaded<B>, Error> {
        let TopRows { rows, .. } = &self.candidates;
        if rows.is_empty() {
            return Ok(Uploaded { temperatures: None, edited: None });
        }
        let each = self.temperatures();
        // Of rows between those of candidates the sums are not used.
        let mut temperatures = vec![1.0; rows.len() * each];
        let mut edited = Vec::new();
        let sampled = self.parts.iter().filter(|part| part.needs == LogitsNeeded::Candidates);
        for (part, row) in sampled.flat_map(|part| part.sampled.clone().map(move |row| (part, row))) {
            let row = row - rows.start;
            temperatures[row * each] = part.temperature;
            edited.extend(part.edited.iter().map(|token| (row * self.vocab) as u32 + token));
        }
        let edited = if edited.is_empty() { None } else { Some(b.upload_row(&edited)?) };
        Ok(Uploaded { temperatures: Some(b.upload(&temperatures, rows.len(), each)?), edited })
    }

    /// Temperatures at which the mass outside of the candidates is summed.
    fn temperatures(&self) -> usize {
        if self.logprobs { 2 } else { 1 }
    }

    /// Launches what the plan reads of the step's logits [outputs, vocabulary].
    pub(super) fn launch<B: Backend>(
        &self,
        b: &B,
        logits: &Tensor<B>,
        uploaded: &Uploaded<B>,
    ) -> Result<LaunchedLogits<B>, Error> {
        let whole = runs(self.parts.iter().flat_map(PartLogits::whole));
        let whole = whole.into_iter().map(|rows| logits.row_range(rows)).collect();
        let top = |of: &TopRows| -> Result<_, Error> {
            if of.rows.is_empty() {
                return Ok(None);
            }
            let x = logits.row_range(of.rows.clone());
            let top = b.run(TopK { x: &x, k: of.k })?;
            Ok(Some((x, top)))
        };
        let top_k = top(&self.top_k)?.map(|(_, top)| top);
        let mut launched = LaunchedLogits { whole, top_k, candidates: None, edited: None };
        if let (Some((x, top)), Some(temperatures)) = (top(&self.candidates)?, &uploaded.temperatures) {
            let tails = b.run(TailSum { x: &x, top: &top, temperatures })?;
            launched.candidates = Some((top, tails));
            if let Some(indices) = &uploaded.edited {
                let x = &x.matrix(0, x.len(), 1);
                launched.edited = Some(b.run(IndexRows { x, indices, mode: IndexMode::Gather })?);
            }
        }
        Ok(launched)
    }

    /// Candidates and sums that the device has computed of a part's rows to sample from, in order: nothing for rows that
    /// are read in full.
    pub(super) fn sampled<'a>(
        &'a self,
        read: &'a LogitsRead,
        part: &'a PartLogits,
    ) -> impl Iterator<Item = SampledRow<'a>> {
        part.sampled.clone().enumerate().filter_map(move |(n, row)| match part.needs {
            LogitsNeeded::Row => None,
            LogitsNeeded::TopK(k) => {
                let (tokens, logits) = read.top_k.row(row - self.top_k.rows.start, self.top_k.k);
                Some(SampledRow::TopK(row, &tokens[..k], &logits[..k]))
            }
            LogitsNeeded::Candidates => {
                let (at, k, each) =
                    (row - self.candidates.rows.start, self.candidates.k, self.temperatures());
                let (tokens, logits) = read.candidates.row(at, k);
                let tails = &read.tails[at * each..][..each];
                let (at_temperature, at_one) = (tails[0], tails[each - 1]);
                let tail = Tail { count: self.vocab - k, at_temperature, at_one };
                let edited_logits =
                    &read.edited[part.edited_at + n * part.edited.len()..][..part.edited.len()];
                let edited = &part.edited;
                Some(SampledRow::Candidates(row, Candidates { tokens, logits, tail, edited, edited_logits }))
            }
        })
    }
}

impl TopKRead {
    /// Tokens and logits of a row.
    fn row(&self, row: usize, k: usize) -> (&[u32], &[f32]) {
        (&self.tokens[row * k..][..k], &self.logits[row * k..][..k])
    }
}

/// A row to sample from, where it is not read in full.
#[derive(Debug)]
pub(super) enum SampledRow<'a> {
    /// The row's index, its top k and their logits.
    TopK(usize, &'a [u32], &'a [f32]),
    /// The row's index, and its candidates.
    Candidates(usize, Candidates<'a>),
}

impl PartLogits {
    /// Rows that are read in full, in order.
    fn whole(&self) -> [Range<usize>; 2] {
        let sampled = if self.needs == LogitsNeeded::Row { self.sampled.clone() } else { 0..0 };
        [self.scored.clone(), sampled]
    }

    /// Number of rows that are read in full.
    pub(super) fn whole_rows(&self) -> usize {
        self.whole().iter().map(Range::len).sum()
    }
}

impl<B: Backend> LaunchedLogits<B> {
    /// Asks for everything in one transfer; for nothing if there is nothing to read.
    pub(super) fn fetch(self, b: &B) -> Result<FetchedLogits<B>, Error> {
        let tops = self.top_k.iter().chain(self.candidates.iter().map(|(top, _)| top));
        let tops = tops.flat_map(|top| [&top.ids, &top.values]);
        let tails = self.candidates.iter().map(|(_, tails)| tails);
        let wanted: Vec<&Tensor<B>> =
            self.whole.iter().chain(tops).chain(tails).chain(&self.edited).collect();
        let pending = if wanted.is_empty() { None } else { Some(b.fetch(&wanted)?) };
        Ok(FetchedLogits { launched: self, pending })
    }
}

impl<B: Backend> FetchedLogits<B> {
    /// The likeliest tokens of the step, [1, parts], if `plan` asks for one after each part.
    pub(super) fn greedy(&self, plan: &LogitsPlan) -> Option<Tensor<B>> {
        let ids = &self.launched.top_k.as_ref().filter(|_| plan.is_greedy())?.ids;
        Some(ids.matrix(0, 1, ids.rows()))
    }

    /// Waits for it.
    pub(super) fn wait(self, b: &B) -> Result<LogitsRead, Error> {
        let FetchedLogits { launched, pending } = self;
        let mut read = LogitsRead::default();
        // In the order in which the tensors were asked for.
        let mut to: Vec<&mut [u8]> = Vec::new();
        read.whole.resize(launched.whole.iter().map(Tensor::len).sum(), 0.0);
        let mut left = &mut read.whole[..];
        for from in &launched.whole {
            let (some, others) = left.split_at_mut(from.len());
            left = others;
            to.push(cast_slice_mut(some));
        }
        let candidates = launched.candidates.as_ref().map(|(top, _)| top);
        for (top, rows) in [(launched.top_k.as_ref(), &mut read.top_k), (candidates, &mut read.candidates)] {
            let Some(top) = top else { continue };
            rows.tokens.resize(top.ids.len(), 0);
            rows.logits.resize(top.values.len(), 0.0);
            to.extend([cast_slice_mut(&mut rows.tokens), cast_slice_mut(&mut rows.logits)]);
        }
        let tails = launched.candidates.as_ref().map(|(_, tails)| tails);
        for (from, values) in [(tails, &mut read.tails), (launched.edited.as_ref(), &mut read.edited)] {
            let Some(from) = from else { continue };
            values.resize(from.len(), 0.0);
            to.push(cast_slice_mut(values));
        }
        if let Some(pending) = pending {
            b.wait(pending, &mut to)?;
        }
        Ok(read)
    }
}

/// Prompt tokens scored by a part's first rows of logits: row i predicts the token after it.
pub(super) fn scored<'a>(part: &BatchPart, asked: &SampleInput<'a>) -> &'a [u32] {
    match part.logits {
        LogitsRows::All { .. } => {
            let following = asked.prompt.get(part.start + 1..).unwrap_or_default();
            &following[..following.len().min(part.tokens.len())]
        }
        LogitsRows::None | LogitsRows::Last => &[],
    }
}

/// The tokens of a part that are known, and those of its draft.
pub(super) fn draft(part: &BatchPart) -> (&[u32], &[u32]) {
    part.tokens.split_at(part.tokens.len() - part.drafted)
}

/// Rows of logits that a part has.
fn outputs(part: &BatchPart) -> usize {
    match part.logits {
        LogitsRows::None => 0,
        LogitsRows::Last => 1 + part.drafted,
        LogitsRows::All { .. } => part.tokens.len(),
    }
}

/// Merges adjacent ranges.
fn runs(ranges: impl Iterator<Item = Range<usize>>) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for range in ranges.filter(|range| !range.is_empty()) {
        match runs.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => runs.push(range),
        }
    }
    runs
}
